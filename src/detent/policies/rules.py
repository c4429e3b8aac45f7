"""Rules as data: which calls get which decision under which condition (the TOML of `documents`, or structs from a program).

A rule matches if it names the tool and its `when` is true. The strongest matching rule wins; no match denies. A condition is CEL over the names of
`projection`. A condition that fails, or is neither true nor false, denies, and the reason names its place. Conditions are compiled on first use, or
all at once by `compile`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import msgspec

from detent.core.codec import digest_of
from detent.core.durations import Seconds, usually
from detent.core.errors import ConfigError, Explained
from detent.core.events import Decision
from detent.core.state import RunState
from detent.expressions.compiled import Expression, ExpressionFailed, compile_expression, execute, make_context
from detent.expressions.functions import kind
from detent.expressions.paths import Path, over_paths
from detent.policies.projection import NAMES, Trace, project, values_at
from detent.policies.verdicts import NO_RULE, RANK, named_by, strongest
from detent.ports import Call, ToolSpec, Verdict
from detent.ports.options import check_fields, checked_options


class Rule(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True, omit_defaults=True):
    """One rule. `tool` holds patterns of tool names. An empty `when` always matches. `source` is the rule's place (`file:line`).

    `approvers`, `expires_s` and `on_reject` belong to `require_approval`: how many different people must approve, how long the request is open,
    and whether a rejection ends the run ("": the agent's setting).
    """

    id: str
    decision: Decision
    tool: tuple[str, ...] = ("*",)
    when: str = ""
    reason: str = ""
    approvers: int = 1
    expires_s: Seconds[float | None] = usually(None)
    on_reject: Literal["", "observe", "stop"] = ""
    source: str = ""

    __post_init__ = check_fields

    @property
    def where(self) -> str:
        """The name of the rule in messages."""
        return f"{self.source}: rule {self.id!r}" if self.source else f"rule {self.id!r}"


class _Ready(msgspec.Struct, frozen=True):
    """The rules that name one tool, and the names that their conditions need. `flat` are the same rules over `paths`, if all can be rewritten."""

    rules: tuple[tuple[Verdict, Expression | None], ...]
    reads: dict[str, frozenset[str] | None]
    calls: frozenset[str]
    flat: tuple[tuple[Verdict, Expression | None], ...]
    paths: dict[str, Path]


class RulePolicy:
    """Decides by rules. Its version begins with `name` and changes with every rule.

    `trace` provides the value of `provenance` for rules (None: that of `policies.provenance`, loaded when a rule first reads it).
    Raise `ConfigError` if two rules have the same id, or if options do not fit a rule's decision.
    """

    @checked_options
    def __init__(self, rules: Sequence[Rule], *, name: str = "rules", trace: Trace | None = None) -> None:
        self.rules = tuple(rules)
        _check(self.rules)
        self._trace = trace
        self._names = [named_by(rule.tool) for rule in self.rules]
        self._compiled: dict[str, Expression] = {}
        self._ready: dict[str, _Ready] = {}
        self._verdicts = [_verdict(rule) for rule in self.rules]
        self.version = f"{name}-{digest_of([msgspec.structs.replace(rule, source='') for rule in self.rules])[:12]}"
        self.data: dict[str, Any] = {} if trace is not None else {"kind": "rules", "name": name, "rules": msgspec.to_builtins(self.rules)}

    def compile(self) -> RulePolicy:
        """Compile every condition now. Raise `ConfigError`, which names rule, place and mistake."""
        for rule in self.rules:
            self._expression(rule)
        return self

    def judge(self, call: Call, state: RunState) -> Verdict | None:
        """Return the strongest verdict of the matching rules, or None if no rule matches."""
        ready = self._ready.get(call.tool.name) or self._prepare(call.tool.name)
        rules, context = self._context(ready, call, state)
        matched: list[Verdict] = []
        for verdict, when in rules:
            held = True if when is None else _holds(when, context)
            if held is True:
                matched.append(verdict)
            elif held is not False:
                matched.append(msgspec.structs.replace(verdict, decision="deny", reason=held, facts={"failed": True}))
        return strongest(matched) if matched else None

    def _context(self, ready: _Ready, call: Call, state: RunState) -> tuple[Sequence[tuple[Verdict, Expression | None]], Any]:
        """Return the rules in the form to evaluate, and the values to evaluate them over."""
        if all(when is None for _, when in ready.rules):
            return ready.rules, None
        if self._trace is None and "provenance" in ready.reads:
            self._trace = _tracer()
        found = values_at(ready.paths, call, state, self._trace) if ready.paths else None
        if found is not None:
            return ready.flat, make_context(found, ready.calls)
        seen = {name: project(name, members, call, state, self._trace) for name, members in ready.reads.items()}
        return ready.rules, make_context(seen, ready.calls)

    def decide(self, call: Call, state: RunState) -> Verdict:
        """Return the strongest verdict of the matching rules, or the denial if no rule matches."""
        return self.judge(call, state) or NO_RULE

    def may_ask(self, tool: ToolSpec) -> bool:
        """Return whether a rule for the tool asks, and no rule refuses all its calls."""
        mine = self._of(tool)
        return any(rule.decision == "require_approval" for rule in mine) and not _barred(mine)

    def bars(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether a rule without a condition refuses every call of this tool."""
        return _barred(self._of(tool))

    def passes(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether some rule may allow a call of this tool."""
        return any(RANK[rule.decision] < RANK["deny"] for rule in self._of(tool))

    def offers(self, tool: ToolSpec, state: RunState) -> bool:
        """Return whether some call of this tool can pass."""
        return not self.bars(tool, state) and self.passes(tool, state)

    def _of(self, tool: ToolSpec) -> list[Rule]:
        return [rule for rule, names in zip(self.rules, self._names, strict=True) if names(tool.name)]

    def _prepare(self, tool: str) -> _Ready:
        """Collect the rules for this tool once. Raise `ConfigError` if a condition is not CEL."""
        mine = [i for i, names in enumerate(self._names) if names(tool)]
        rules = tuple((self._verdicts[i], self._expression(self.rules[i])) for i in mine)
        reads: dict[str, frozenset[str] | None] = {}
        for _, when in rules:
            for name, members in when.reads.items() if when is not None else ():
                known = reads.get(name, frozenset())
                reads[name] = None if known is None or members is None else known | members
        calls = frozenset(called for _, when in rules if when is not None for called in when.calls)
        flat, paths = _flat(rules)
        ready = self._ready[tool] = _Ready(rules, reads, calls, flat, paths)
        return ready

    def _expression(self, rule: Rule) -> Expression | None:
        if not rule.when.strip():
            return None
        if rule.id not in self._compiled:
            self._compiled[rule.id] = compile_expression(rule.when, where=f"{rule.where}: when", names=NAMES)
        return self._compiled[rule.id]


def _flat(rules: Sequence[tuple[Verdict, Expression | None]]) -> tuple[tuple[tuple[Verdict, Expression | None], ...], dict[str, Path]]:
    """Return the rules with their conditions rewritten over paths, and the paths. No paths if a condition cannot be rewritten."""
    made: list[tuple[Verdict, Expression | None]] = []
    paths: dict[str, Path] = {}
    for verdict, when in rules:
        found = None if when is None else over_paths(when, NAMES.variables)
        if when is not None and found is None:
            return (), {}
        made.append((verdict, None if found is None else found[0]))
        paths |= {} if found is None else found[1]
    return tuple(made), paths


def _tracer() -> Trace:
    from detent.policies.provenance.policy import tracer

    return tracer()


def _holds(when: Expression, context: Any) -> bool | str:
    """Return whether the condition is true, or why that is unknown."""
    try:
        value = execute(when, context)
    except ExpressionFailed as error:
        return str(error)
    if isinstance(value, bool):
        return value
    return f"{when.where}: `{' '.join(when.source.split())}` gave {kind(value)}, not true or false"


def _verdict(rule: Rule) -> Verdict:
    return Verdict(
        decision=rule.decision,
        rule=rule.id,
        reason=rule.reason or ("" if rule.decision == "allow" else f"rule {rule.id}"),
        sources=(rule.source,) if rule.source else (),
        approvers=rule.approvers,
        expires_s=rule.expires_s,
        on_reject=rule.on_reject,
    )


def _barred(rules: Sequence[Rule]) -> bool:
    return any(not rule.when.strip() and RANK[rule.decision] >= RANK["deny"] for rule in rules)


def _check(rules: Sequence[Rule]) -> None:
    seen: set[str] = set()
    for rule in rules:
        if not rule.id.strip():
            raise ConfigError(f"{rule.source or 'rules'}: id: missing; every rule needs an id, by which the log identifies it")
        if rule.id in seen:
            raise ConfigError(f"{rule.where}: id: another rule has this id; every rule needs its own, by which the log identifies it")
        seen.add(rule.id)
        if not rule.tool or not all(cast("Sequence[str]", rule.tool)):
            raise ConfigError(f'{rule.where}: tool: is empty; name tools, or write "*" for all')
        if rule.approvers < 1:
            raise ConfigError(f"{rule.where}: approvers: {rule.approvers}; give at least 1")
        if rule.expires_s is not None and not rule.expires_s > 0:
            raise ConfigError(f"{rule.where}: expires: {rule.expires_s:g} s; give a time above 0")
        if rule.decision != "require_approval" and (rule.approvers != 1 or rule.expires_s is not None or rule.on_reject):
            raise ConfigError(
                f'{rule.where}: approvers, expires and on_reject belong to decision = "require_approval", not {rule.decision!r}'
            )
