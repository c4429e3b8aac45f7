"""Policies as data: a TOML file, or the `policy` of an agent file, and the policy objects for them.

    default = "deny"                     # if no part below decides: "deny", or "tiers"
    [tiers]  [permission]  [delegation]  [provenance]   # each present table is a stage
    [[rules]]                            # id, tool, when, decision, reason, approvers, expires, on_reject

Mistakes are a `ConfigError` that names file, line, table, key and the nearest valid choice. The log records a policy as the same data without
defaults. Each rule keeps its file and line as `source`.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import msgspec

from detent.core.codec import digest_of
from detent.core.durations import WRITTEN, seconds
from detent.core.errors import ConfigError
from detent.core.events import Decision
from detent.policies.basic import PermissionPolicy
from detent.policies.delegation import DelegationLimits, DelegationPolicy
from detent.policies.lines import Lines
from detent.policies.pipeline import PolicyPipeline, Tightening
from detent.policies.projection import Trace
from detent.policies.rules import Rule, RulePolicy
from detent.policies.tiers import TieredPolicy
from detent.ports.governing_files import governs

T = TypeVar("T", bound=msgspec.Struct)


class TierTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`[tiers]`: the decision for each level, and for single tools by name or pattern."""

    none: Decision = "allow"
    read: Decision = "allow"
    write: Decision = "allow"
    destructive: Decision = "require_approval"
    tools: dict[str, Decision] = {}


class PermissionTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`[permission]`: the options of `PermissionPolicy` that are data."""

    mode: Literal["default", "allow", "deny", "ask", "auto", "headless"] = "default"
    allowed_tools: tuple[str, ...] = ("*",)
    denied_tools: tuple[str, ...] = ()
    always_ask: tuple[str, ...] = ()
    require_approval_for: tuple[str, ...] = ()
    prompt_available: bool = True
    max_steps: int | None = None
    max_failures: int | None = None


class ProvenanceTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`[provenance]`: the options of `ProvenancePolicy`; it only tightens what the other parts allow."""

    on_unproven: Literal["require_approval", "deny"] = "require_approval"
    trust_memory: bool = False


class PolicyDocument(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole policy as data. `version` is the author's own label. The recorded version also has a digest of the rest."""

    version: str = ""
    default: Literal["deny", "tiers"] = "deny"
    tiers: TierTable | None = None
    permission: PermissionTable | None = None
    delegation: DelegationLimits | None = None
    provenance: ProvenanceTable | None = None
    rules: tuple[Rule, ...] = ()


class DocumentPolicy(PolicyPipeline):
    """The policy of a document. `trace` provides the value of `provenance` for rules."""

    def __init__(self, document: PolicyDocument, *, trace: Trace | None = None) -> None:
        stages: list[Any] = []
        if document.delegation is not None:
            stages.append(DelegationPolicy(document.delegation))
        if document.permission is not None:
            stages.append(PermissionPolicy(**msgspec.structs.asdict(document.permission)))
        if document.tiers is not None:
            said = msgspec.structs.asdict(document.tiers)
            stages.append(TieredPolicy({k: v for k, v in said.items() if k != "tools"}, tools=said["tools"]))  # type: ignore[misc]
        if document.provenance is not None:
            from detent.policies.provenance.policy import ProvenancePolicy

            stages.append(Tightening(ProvenancePolicy(**msgspec.structs.asdict(document.provenance))))
        self._rules = RulePolicy(document.rules, trace=trace)
        super().__init__([*stages, self._rules], default=TieredPolicy() if document.default == "tiers" else None)
        bare = msgspec.structs.replace(document, rules=tuple(msgspec.structs.replace(r, source="") for r in document.rules))
        self.version = f"{document.version or 'policy'}-{digest_of(bare)[:12]}"
        self.data = {} if trace is not None else {"kind": "document", "document": as_data(document)}

    def compile(self) -> DocumentPolicy:
        """Compile every condition now. Raise `ConfigError`."""
        self._rules.compile()
        return self


# Reading ----------------------------------------------------------------------------------------------------------------------


def load_policy(path: str | Path) -> DocumentPolicy:
    """Return the policy of a file with every condition compiled. Raise `ConfigError`, which names file, line and key."""
    return DocumentPolicy(read_policy(path)).compile()


def read_policy(path: str | Path) -> PolicyDocument:
    """Return the document in a policy file. Raise `ConfigError`, which names file, line and key."""
    file = Path(path)
    governs(file)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"failed to read policy file {str(path)!r}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"policy file {str(path)!r} is not UTF-8 text: byte {error.start} cannot be read") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"at line (\d+)", str(error))
        raise ConfigError(f"{path}:{place[1] if place else len(text.splitlines())}: not TOML: {error}") from None
    if not table:
        raise ConfigError(f"{path}: the policy is empty and would deny every call; give it [[rules]], or [tiers]")
    return policy_document(table, Lines(text, str(path)))


def policy_document(data: Any, lines: Lines | None = None, *, where: str = "policy") -> PolicyDocument:
    """Return the document for plain data: a table, or only a list of rules. Raise `ConfigError`.

    `lines` gives the places of its parts in a file. Without it, errors name them by `where` and number.
    """
    lines = lines or Lines("", where)
    if isinstance(data, PolicyDocument):
        return data
    if isinstance(data, Sequence) and not isinstance(data, str):
        data = {"rules": list(cast("Sequence[Any]", data))}
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where}: expected a table or a list of rules, found {data!r}")
    table = dict(cast("Mapping[str, Any]", data))
    rules = table.pop("rules", [])
    if not isinstance(rules, list | tuple):
        raise ConfigError(f"{lines.of('rules')}: rules: expected [[rules]], found {rules!r}")
    entries = cast("Sequence[Any]", rules)
    document = _take(table, PolicyDocument, lines, ())
    return msgspec.structs.replace(document, rules=tuple(_rule(entry, i, lines) for i, entry in enumerate(entries)))


def _rule(entry: Any, number: int, lines: Lines) -> Rule:
    if isinstance(entry, Rule):
        return entry
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{lines.rule(number)}: rules[{number}]: expected a table, found {entry!r}")
    said = dict(cast("Mapping[str, Any]", entry))
    if isinstance(said.get("tool"), str):
        said["tool"] = (said["tool"],)
    if "expires" in said:
        said["expires_s"] = _seconds(said.pop("expires"), f"{lines.rule(number, 'expires')}: rules[{number}].expires")
    rule = _take(said, Rule, lines, ("rules", number), known=(*Rule.__struct_fields__, "expires"))
    rule = rule if rule.source or not lines.short(number) else msgspec.structs.replace(rule, source=lines.short(number))
    try:
        RulePolicy([rule])
    except ConfigError as error:
        raise ConfigError(f"{lines.rule(number)}: {str(error).removeprefix(f'{rule.source}: ')}") from None
    return rule


def _seconds(value: Any, where: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        raise ConfigError(f"{where} is {value!r}; write {WRITTEN}")
    return float(seconds(value.strip(), where))


def _take(table: Mapping[str, Any], kind: type[T], lines: Lines, path: tuple[Any, ...], *, known: Sequence[str] = ()) -> T:
    """Return `table` as a `kind`. Raise `ConfigError` for an unknown or missing key, and for a value of another type."""
    fields = {f.name: f for f in msgspec.structs.fields(kind)}
    shown = "".join(f"[{part}]" if isinstance(part, int) else f"{part}." for part in path).replace(".[", "[")
    shown = shown if not shown or shown.endswith(".") else f"{shown}."
    values: dict[str, Any] = {}
    for key, value in table.items():
        place = f"{lines.at((*path, key))}: {shown}{key}"
        if key not in fields:
            raise ConfigError(f"{place}: unknown key; {_nearest(key, known or fields)}")
        part = _table_of(fields[key].type)
        if part is not None and isinstance(value, Mapping):
            values[key] = _take(cast("Mapping[str, Any]", value), part, lines, (*path, key))
            continue
        try:
            values[key] = msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as error:
            choices = _choices(fields[key].type)
            wrong = next((v for v in value.values() if v not in choices), None) if isinstance(value, dict) else value  # type: ignore[union-attr]
            if choices and isinstance(wrong, str):
                raise ConfigError(f"{place}: {wrong!r} is not a valid value; {_nearest(wrong, choices)}") from None
            raise ConfigError(f"{place}: {str(error)[0].lower()}{str(error)[1:]}") from None
    missing = [name for name, field in fields.items() if field.required and name not in values]
    if missing:
        raise ConfigError(f"{lines.at(path)}: {shown}{missing[0]}: missing; {_MEANT.get(missing[0], 'it must be given')}")
    return kind(**values)


_MEANT = {
    "id": 'a rule needs an id, such as id = "no-force-push": the log tells rules apart by their ids',
    "decision": "a rule needs a decision: allow, require_approval, deny or stop",
}


def _table_of(kind: Any) -> Any:
    """Return the struct type of a field, or None if the field has another type."""
    for option in (kind, *get_args(kind)):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option
    return None


def _choices(kind: Any) -> tuple[str, ...]:
    found = tuple(c for c in get_args(kind) if isinstance(c, str) and c)
    return found or tuple(c for inner in get_args(kind) for c in get_args(inner) if isinstance(c, str))


def _nearest(name: str, known: Iterable[str]) -> str:
    names = sorted(n for n in known if n != "source")
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"


def as_data(document: PolicyDocument) -> dict[str, Any]:
    """Return the document as the log records it: plain data without defaults."""
    data: dict[str, Any] = msgspec.to_builtins(document)
    return data
