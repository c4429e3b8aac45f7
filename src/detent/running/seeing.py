"""What a child sees of its parent, as its agent declares it (`sees`): nothing but the goal, or messages of the parent's run.

`goal` (the default), `messages`, `last(N)`, or a function of the messages. Results of tools are left out; `messages(tools)` and `last(N, tools)` show them,
and a function is given all. What the child sees is an artifact of its run, which its first record names by digest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from detent.config.adapters import words_of
from detent.config.profile import make_profile
from detent.core.agent import AgentSpec
from detent.core.errors import ConfigError
from detent.core.state import RunState
from detent.ports.conversing import Conversation, Message
from detent.ports.raised import raised_by
from detent.running.conversing import NOBODYS, cut, replace

_SEES = re.compile(r"(?P<all>messages)(?:\((?P<some>tools)\))?|last\((?P<n>[1-9][0-9]{0,5})(?P<tools>, ?tools)?\)")
Sees = Callable[[Sequence[Message]], Sequence[Message]]
"""Chooses what a child sees of the messages of its parent, those with results of tools among them."""


def refuse_unknown(spec: AgentSpec, known: Mapping[str, Sees]) -> None:
    """Raise `ConfigError` if the agent sees what nobody can say here."""
    if spec.sees != "goal" and _SEES.fullmatch(spec.sees) is None and spec.sees not in known:
        functions = (
            f", or a function of this engine: {', '.join(known)}" if known else ", or a function (in a program: Agent(sees=function))"
        )
        raise ConfigError(
            f"agent {spec.name!r}: sees is {spec.sees!r}; write goal, messages, last(N), messages(tools), last(N, tools){functions}"
        )


def seen_by(spec: AgentSpec, state: RunState, earlier: Sequence[Message], known: Mapping[str, Sees]) -> Conversation | None:
    """Return what a child of a run sees of it, cut to a part of the child's window; None for nothing. Raise `ConfigError`.

    `earlier` is the conversation that the parent knows. A message that a function changed or made up has no origin.
    """
    refuse_unknown(spec, known)
    if spec.sees == "goal":
        return None
    place = _SEES.fullmatch(spec.sees)
    if place is None:
        every = messages_of(state, earlier, calls=True)
        try:
            chosen = [one if one in every else replace(one, origin=NOBODYS) for one in known[spec.sees](tuple(every))]
        except Exception as error:  # foreign code: without what it chooses, the child would see something else
            said = raised_by(error, f"the function {spec.sees!r}")
            raise ConfigError(f"agent {spec.name!r}: sees: {said}") from error
    else:
        chosen = messages_of(state, earlier, calls=bool(place["some"] or place["tools"]))
        chosen = chosen[-int(place["n"]) :] if place["n"] else chosen
    return cut(Conversation(messages=tuple(chosen)), make_profile(spec.profile).window_tokens)


def messages_of(state: RunState, earlier: Sequence[Message], *, calls: bool) -> list[Message]:
    """Return the messages of a run, as far as it is: what its user and its planner said. `calls`: also the results of its tools."""
    origin_of, run_id = words_of(state, earlier), state.run_id
    said = [one for one in earlier if calls or one.kind != "tool"]
    said.append(Message(kind="user", text=state.goal, run_id=run_id, origin=origin_of(state.goal)))
    for item in (item for known in state.passes.values() for item in list(known.steps)[1:]):
        if item.kind in ("user", "model") and item.text:
            kind = "user" if item.kind == "user" else "model"
            said.append(Message(kind=kind, text=item.text, run_id=run_id, origin=origin_of(item.text)))
        elif calls and item.kind == "tool" and item.executed:
            content: Any = item.content if item.error is None else {"error": f"{item.error.code}: {item.error.message}"}
            origin = origin_of([item.args, content], item)
            said.append(Message(kind="tool", run_id=run_id, tool=item.tool, args=item.args, ok=item.ok, content=content, origin=origin))
    return said
