"""Keeps values out of a run's log: sensitive ones, and those too large for a record. Both are stored beside it as blobs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from detent.core.actions import FinalAnswer, ToolCall
from detent.core.codec import walk
from detent.core.errors import CorruptLog, StoreError, ToolFailed
from detent.core.events import ArtifactRef
from detent.core.state import Item, RunState
from detent.kernel.journal import Journal
from detent.ports import (
    EventStore,
    MadeFile,
    MetaTool,
    Plan,
    Tool,
    ToolOutcome,
    ToolSpec,
    calls_in,
)
from detent.running.artifacts import artifact
from detent.running.lineage import find_blob
from detent.secrecy.placing import OTHER, PLANNER, REFUSED, Given, Kept, fields_of, is_kept, kept_in, kept_of, misplaced
from detent.secrecy.redact import Redactor, placeholders, rejected, resolve

log = logging.getLogger("detent")

KEY_BLOB = "redaction-key"
SHORTCUT = "shortcut-"
"""What the blob keys of a strategy's shortcuts begin with."""


def blob_of(placeholder: str) -> str:
    """Return the blob key for a placeholder's value."""
    return "secret-" + placeholder[8:-1]


class Values:
    """The values of one run, on their way into its log and out again."""

    __slots__ = ("_journal", "_kept", "_nothing_hidden", "_patterns", "_redactor", "_store", "damage")

    def __init__(self, journal: Journal, store: EventStore, redact: Sequence[str]) -> None:
        self._journal, self._store, self._patterns = journal, store, tuple(redact)
        self._redactor: Redactor | None = None
        self._nothing_hidden: dict[str, ToolSpec] | None = None
        self._kept: dict[str, Kept] = {}
        self.damage: CorruptLog | None = None  # the stored values of the run have changed: it is not advanced any further

    def _run(self) -> RunState:
        return self._journal.state

    async def full(self, item: Item) -> Any:
        """Return the whole value of a tool item, read from the run's artifacts if the item holds a preview. Raise `CorruptLog`."""
        if item.artifact is None:
            return item.content
        try:
            return msgspec.json.decode(await artifact(self._store, self._run(), item.artifact.key))
        except CorruptLog as error:
            self.damage = error
            raise

    async def shortcut(self, name: str) -> bytes | None:
        """Return what `keep_shortcut` kept under this name; b"" if it is not whole."""
        try:
            data = await self._store.get_blob(self._run().run_id, SHORTCUT + name)
        except StoreError as error:
            return log.debug("a shortcut of run %s is not used: %s", self._run().run_id, error)
        return data if data is None else data[32:] if sha256(data[32:]).digest() == data[:32] else b""

    async def keep_shortcut(self, name: str, data: bytes) -> None:
        """Keep `data` beside the log, with its digest before it; b"" drops it. If that fails, the run does without."""
        try:
            if data:
                await self._store.put_blob(self._run().run_id, SHORTCUT + name, sha256(data).digest() + data)
            else:
                await self._store.delete_blob(self._run().run_id, SHORTCUT + name)
        except StoreError as error:
            log.debug("no shortcut of run %s: %s", self._run().run_id, error)

    async def hide(self, plan: Plan, specs: dict[str, ToolSpec]) -> Plan:
        """Return the plan with placeholders for sensitive values. These values, and files that a model created, are stored before it is recorded."""
        if not isinstance(plan, Plan):  # pyright: ignore[reportUnnecessaryIsInstance] - a planner may answer anything
            return plan
        if plan.files:
            plan = msgspec.structs.replace(plan, files=tuple([await self._stored(file) for file in plan.files]))
        if not self._patterns and (specs is self._nothing_hidden or not any(spec.sensitive for spec in specs.values())):
            self._nothing_hidden = specs  # asked once a turn, as a rule of the same tools
            return plan
        redactor = await self._redacting(PLANNER)
        actions: list[Any] = []
        text = plan.text
        for action in plan.actions:
            if isinstance(action, ToolCall):
                args, reason = redactor.call(action.tool, action.args, specs), redactor.said(action.reason, specs)
                written = redactor.broken(action.written, specs)
                actions.append(msgspec.structs.replace(action, args=args, reason=reason, written=written))
                continue
            if isinstance(action, FinalAnswer):
                for said, tool, args in calls_in(action.content, specs):  # a call in the text of an answer hides its fields too
                    hidden_call = f"{tool}({msgspec.json.encode(redactor.arguments(args, specs[tool])).decode()})"
                    text = text.replace(said, hidden_call)
            builtins = redactor.planned(msgspec.to_builtins(action), specs)  # later calls, in an answer or any other words
            actions.append(msgspec.convert(redactor.data(builtins), type(action)))
        hidden = msgspec.structs.replace(
            plan,
            actions=tuple(actions),
            text=redactor.said(text, specs),
            thinking=redactor.said(plan.thinking, specs),
            provider_data=redactor.data(redactor.planned(plan.provider_data, specs)),
        )
        await self._keep_secrets(redactor)
        await self._look_up(placeholders([getattr(action, "args", None) or getattr(action, "content", None) for action in hidden.actions]))
        return hidden

    async def scrub(self, value: Any, spec: ToolSpec | None = None, *, known: dict[str, ToolSpec] | None = None, whose: str = OTHER) -> Any:
        """Return a person's input (a reply, other arguments for `spec`) with placeholders for sensitive values.

        In a model's words that are not a valid plan, values of sensitive fields of the tools `known` are replaced too. `whose` names the author of
        the words.
        """
        if known:
            value = walk(value, lambda text: rejected(text, known.values()))
        if not self._patterns and (spec is None or not spec.sensitive):
            return value
        redactor = await self._redacting(PLANNER if known else whose)
        shown = redactor.data(value) if spec is None else redactor.arguments(value, spec)
        await self._keep_secrets(redactor)
        return shown

    async def keep(self, call_id: str, outcome: ToolOutcome) -> ToolOutcome:
        """Redact a result, and store it whole before the record that names it if it is over the cap."""
        if self._patterns and outcome.kind == "ok":
            redactor = await self._redacting(self._giver(call_id))
            shown = redactor.data(msgspec.json.decode(outcome.result))
            whole = None if outcome.full is None else redactor.data(msgspec.json.decode(outcome.full))
            outcome = msgspec.structs.replace(
                outcome, result=msgspec.json.encode(shown), full=None if outcome.full is None else msgspec.json.encode(whole)
            )
            await self._keep_secrets(redactor, call_id, whole if outcome.full is not None else shown)
        if self._patterns and outcome.message:
            redactor = await self._redacting(self._giver(call_id))
            outcome = msgspec.structs.replace(outcome, message=redactor.text(outcome.message), details=redactor.data(outcome.details))
            await self._keep_secrets(redactor, call_id, outcome.details)
        if outcome.full is not None:
            outcome = msgspec.structs.replace(
                outcome, artifact=await self._stored(MadeFile(data=outcome.full, media_type="application/json"))
            )
        return outcome

    async def _stored(self, file: Any) -> ArtifactRef:
        """Store a file as an artifact of the run and return its reference. Raise `TypeError` if a planner gave something else."""
        if not isinstance(file, MadeFile):
            raise TypeError(f"Plan(files=...) holds a {type(file).__name__}; it takes MadeFile(data=..., media_type=...)")
        key = sha256(file.data).hexdigest()
        await self._store.put_blob(self._run().run_id, key, file.data)
        return ArtifactRef(key=key, size_bytes=len(file.data), media_type=file.media_type)

    async def redactor(self) -> Redactor:
        """Return the run's redactor; its key is stored with the run."""
        if self._redactor is None:
            run_id = self._run().run_id
            key = await find_blob(self._store, self._run(), KEY_BLOB)
            if key is None:
                key = os.urandom(32)
                await self._store.put_blob(run_id, KEY_BLOB, key)
            self._redactor = Redactor(self._patterns, key)
        return self._redactor

    async def _redacting(self, whose: str) -> Redactor:
        """Return the redactor for words of `whose`. Await nothing before its findings are stored."""
        redactor = await self.redactor()
        redactor.whose = whose
        return redactor

    async def _keep_secrets(self, redactor: Redactor, call_id: str = "", data: Any = None) -> None:
        """Store the findings and their origin: the call whose result is `data`, else the author that the redactor was given."""
        found = kept_of(redactor)
        tool = self._giver(call_id).removeprefix("tool ")
        fields = fields_of(data) if found and call_id else {}
        await self._look_up(found)
        for name, fresh in found.items():
            given = (Given(tool, call_id, fields.get(name, ())),) if call_id else fresh.given
            known = self._kept.get(name)
            now = Kept(fresh.value, given) if known is None else known.also(given)
            if now != known:
                self._kept[name] = now
                await self._store.put_blob(self._run().run_id, blob_of(name), msgspec.json.encode(now))

    def _giver(self, call_id: str) -> str:
        """Return the tool of a call as the origin of its results; a tool may be called `user`."""
        call = self._run().call(call_id) if call_id else None
        return OTHER if call is None else f"tool {call.tool}"

    async def _look_up(self, names: Iterable[str]) -> None:
        """Read the stored values of these placeholders."""
        for name in sorted(set(names) - self._kept.keys()):
            data = await find_blob(self._store, self._run(), blob_of(name))
            if data is not None and name not in self._kept:
                if not is_kept(data, name, await self.redactor()):
                    self.damage = CorruptLog(self._run().run_id, 0, f"the value stored for {name} was altered")
                    raise self.damage
                self._kept[name] = kept_in(data)

    def misplaced(self, call_id: str, tool: Tool, args: dict[str, Any]) -> str:
        """Return why a call must not get the hidden values that it names, as far as they were looked up; "" if it may."""
        if not self._kept or isinstance(tool, MetaTool) or not placeholders(args):
            return ""
        return misplaced(tool.spec, args, self._kept, self._run())

    async def _resolved(self, tool: ToolSpec, args: Any) -> Any:
        """Return the arguments with the hidden values that they name. Raise `ToolFailed` if one must not get there."""
        await self._look_up(placeholders(args))
        if problem := misplaced(tool, args, self._kept, self._run()):
            raise ToolFailed(problem, error_code=REFUSED)
        if self._run().session is not None and (missing := sorted(placeholders(args) - self._kept.keys())):
            raise ToolFailed(
                f"{REFUSED}: the value of {missing[0]} was given to an earlier run of this session, and is not kept for this one; nothing was "
                "executed. Do without it, or ask the user for it",
                error_code=REFUSED,
            )
        return resolve(args, {name: kept.value for name, kept in self._kept.items()})
