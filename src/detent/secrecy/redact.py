"""Redaction before the log: sensitive values become placeholders. The values are stored with the run, and only tools get them.

Own code: detect-secrets (92 ms to import, 4.6 MB with requests) finds known kinds in lines. Here keyed hashes replace what an agent names.

A placeholder is `<secret:HASH>`, a keyed hash of the value and of its origin. Equal values of one origin get equal placeholders. A model that writes
down every possible value cannot see which of them a tool returned. Digest, idempotency key, guards and policy see the placeholder, live and in
replay alike.
"""  # DESIGN 4

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, cast

import msgspec

from detent.core.codec import walk
from detent.core.errors import ConfigError
from detent.core.events import RunStarted
from detent.expressions.patterns import BadPattern, compiled, widest
from detent.ports import ToolSpec, calls_in, read_json
from detent.ports.options import checked_options

PLACEHOLDER = re.compile(r"<secret:[0-9a-f]{24}>")
"""A placeholder: what the log has in place of a redacted value."""
_STAYS = re.compile(rf"{PLACEHOLDER.pattern}|\{{\{{\s*[A-Za-z0-9_.-]+\s*\}}\}}")
"""A placeholder, or a reference in a planned call's arguments to a value that does not exist yet."""
HIDDEN = "<secret>"
"""Replaces in streamed text what the log has a placeholder for."""
MOST_HELD = 1_000
AT_ONCE = 4_096
_NAMES, _ARGUMENTS = ("tool", "name"), ("args", "arguments")
"""The keys of a planned call for its tool, and for its arguments."""
_ENDS = {'"': '"', "'": "'", "\u201c": "\u201d", "\u201d": "\u201d", "\u2018": "\u2019", "\u2019": "\u2019"}
"""For each opening quote the closing one; models write typographic ones, too."""
_PREFIXES = frozenset("bBfFrRtTuU")
"""The letters that may come before the quote of a Python text: `f"..."`, `rb'...'`."""
_QUOTE = re.compile(r"""\\{0,15}["'\u201c\u201d\u2018\u2019]|\\{1,15}$""")
_BARE = re.compile(r"""[{(,]\s{0,200}([^\s{}(),:="'\u201c\u201d\u2018\u2019]*)$""")
"""Where a name without quotes may begin. The spaces are limited, so a model that writes only spaces is not held back for ever."""
_OPEN, _JSON = re.compile(r"[{\[]"), json.JSONDecoder()
MOST_MATCHES, MOST_STEPS = 1_000, 10**8
"""The most matches in a text; more are allowed while matches times characters stay below the second number. A text with more is hidden whole.

Finding one match may read the whole rest of a text (`a[^b]*b|a`), and each value is stored on its own.
"""
MOST_TRIED = 100
"""How many beginnings of JSON in a text may turn out not to be JSON; after that the search stops."""


class _TooMany(Exception):
    """A text has too many matches to replace them one by one."""


class Redactor:
    """Replaces what `patterns` (regular expressions) match, and whole fields by name. `found` collects the replaced values.

    `whose` is the origin of the current input, and `givers` collects the origins. Existing placeholders are kept and never become part of a hidden
    value: whoever may have that value would also get theirs.
    """

    @checked_options
    def __init__(self, patterns: Sequence[str], key: bytes) -> None:
        self._key = key
        self.found: dict[str, Any] = {}
        self.whose, self.givers = "planner", dict[str, set[str]]()
        try:
            self._patterns = [compiled(p) for p in patterns]
        except BadPattern as error:
            raise ConfigError(f"redact pattern {error}") from error
        for pattern in self._patterns:
            if pattern.search("") is not None or not widest(pattern.source):
                raise ConfigError(
                    f"redact pattern {pattern.source!r} matches the empty text; write it so that it needs at least one character"
                )

    def text(self, value: str) -> str:
        """Return `value` with every match replaced, or replaced whole if there are too many."""
        shown, left = value, max(MOST_MATCHES, MOST_STEPS // max(1, len(value)))

        def hide(match: str) -> str:
            nonlocal left
            left -= 1
            if left < 0:
                raise _TooMany
            return self._hide(match)

        before, self.found = self.found, {}
        try:
            for pattern in self._patterns:
                shown = _between(PLACEHOLDER, shown, lambda part: pattern.sub(hide, part))  # noqa: B023
        except _TooMany:
            self.found = {}
            shown = _between(PLACEHOLDER, value, self._hide)
        before.update(self.found)
        self.found = before
        return shown

    def without(self, value: str) -> str:
        """Return `value` with every match removed."""
        for pattern in self._patterns:
            value = pattern.sub(lambda _: "", value)
        return value

    def data(self, value: Any) -> Any:
        """Return JSON data with every match in its strings replaced."""
        return walk(value, self.text) if self._patterns else value

    def arguments(self, args: Any, spec: ToolSpec | None) -> Any:
        """Return a call's arguments with the tool's sensitive fields replaced whole, and matches elsewhere. Text is parsed first.

        Invalid arguments that may contain such a field are replaced whole: data that is not an object, and arguments that the tool does not have.
        """
        if spec is None or not spec.sensitive or args is None:
            return self.data(args)
        given = args
        if isinstance(args, str):
            try:
                given = read_json(args)
            except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
                return self._hide(args.encode("utf-8", "replace").decode())
        if not isinstance(given, dict):
            return self._hide(args)
        fields = cast("dict[str, Any]", given)
        return self.data({k: self._whole(v) if k in spec.sensitive or _stray(k, spec) else v for k, v in fields.items()})

    def call(self, tool: str, args: Any, specs: Mapping[str, ToolSpec]) -> Any:
        """Return the arguments of a call like `arguments`. If the tool does not exist, replace what any tool declares sensitive."""
        return self.arguments(args, specs.get(tool) or _strange(tool, specs))

    def planned(self, value: Any, specs: Mapping[str, ToolSpec]) -> Any:
        """Return an answer (JSON data, or text that is JSON) with the sensitive fields replaced in each planned call of a tool of `specs`.

        A planned call is an object with the tool's name and arguments, like a step of a plan, or a text `tool({...})`. References to
        results of other steps are kept.
        """
        if isinstance(value, str):
            return self._planned_text(value, specs)
        if isinstance(value, (list, tuple)):
            return [self.planned(part, specs) for part in cast("list[Any]", value)]
        if not isinstance(value, dict):
            return value
        whole = cast("dict[str, Any]", value)
        tools = [name for key in _NAMES if isinstance(name := whole.get(key), str)]
        known = [spec for name in tools if (spec := specs.get(name))]
        spec = next((spec for spec in known if spec.sensitive), None)
        if tools and not known and any(isinstance(whole.get(key), dict) for key in _ARGUMENTS):
            spec = _strange(tools[0], specs)
        if spec is None:
            return {key: self.planned(part, specs) for key, part in whole.items()}
        return {key: self.arguments(part, spec) if key in _ARGUMENTS else self.planned(part, specs) for key, part in whole.items()}

    def said(self, text: str, specs: Mapping[str, ToolSpec]) -> str:
        """Return a model's text beside its plan, redacted like `planned`; sensitive fields in other JSON are hidden as in a stream."""
        fields = sensitive_fields(specs.values())
        return self.text(self._planned_text(text, specs, lambda part: hidden(part, fields=fields)))

    def broken(self, text: str, specs: Mapping[str, ToolSpec]) -> str:
        """Return a text with broken JSON, redacted like `said`; hide it whole if a value from its calls still occurs in it."""
        shown = self.said(text, specs)
        return self._hide(text) if any(isinstance(value, str) and value and value in shown for value in self.found.values()) else shown

    def _planned_text(self, text: str, specs: Mapping[str, ToolSpec], rest: Callable[[str], str] = str) -> str:
        """Return a text with the sensitive values of its JSON plans replaced, wherever they are; `rest` changes everything else."""
        for said, tool, args in calls_in(text, specs):
            if (safe := self.arguments(args, specs[tool])) != args:
                text = text.replace(said, f"{tool}({msgspec.json.encode(safe).decode()})")
        shown: list[str] = []
        done = tried = 0
        begun = _OPEN.search(text)
        while begun is not None and tried < MOST_TRIED:
            end = begun.start() + 1
            try:
                value, end = _JSON.raw_decode(text, begun.start())
                safe = self.planned(value, specs)
                if safe != value:
                    shown += _around(text[done : begun.start()], rest), json.dumps(safe, ensure_ascii=False)
                    done = end
            except UnicodeEncodeError:  # half a surrogate pair in a value to hide
                shown += _around(text[done : begun.start()], rest), HIDDEN
                done = end
            except (ValueError, RecursionError):
                tried += 1
            begun = _OPEN.search(text, end)
        return "".join([*shown, _around(text[done:], rest)])

    def _whole(self, value: Any) -> Any:
        """Return a sensitive value with each scalar in it replaced; structure and references are kept."""
        if isinstance(value, dict):
            return {k: self._whole(v) for k, v in cast("dict[str, Any]", value).items()}
        if isinstance(value, (list, tuple)):
            return [self._whole(v) for v in cast("list[Any]", value)]
        if value is None:
            return value
        return _between(_STAYS, value, self._hide) if isinstance(value, str) and _STAYS.search(value) else self._hide(value)

    def made(self, name: str, value: Any, givers: Iterable[str]) -> bool:
        """Whether this is the placeholder of a value from one of these origins."""
        return any(name == self._name(whose, value) for by in givers for whose in (by, f"tool {by}"))

    def _name(self, whose: str, value: Any) -> str:
        return f"<secret:{hmac.new(self._key, msgspec.json.encode([whose, value]), sha256).hexdigest()[:24]}>"

    def _hide(self, value: Any) -> str:
        name = self._name(self.whose, value)
        self.found[name] = value
        self.givers.setdefault(name, set()).add(self.whose)
        return name


class Streamed:
    """Streamed text with matches of `patterns` replaced by `HIDDEN`, however it is cut into pieces.

    Text that could still become part of a match is held back: as many characters as a match can have. If that is unlimited (`sk-\\w+`), or
    more than `MOST_HELD`, everything is held back until the text ends.
    """

    __slots__ = ("_held", "_patterns", "_raw", "_shown")

    @checked_options
    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = [compiled(p) for p in patterns]
        self._held = max((widest(p) for p in patterns), default=0) + 1
        self._raw, self._shown = "", 0  # shown text is kept for a while: matches depend on the text before them

    def add(self, piece: str) -> str:
        """Return the text that can be shown now."""
        self._raw += piece
        return self._until(len(self._raw) - self._held) if self._held <= MOST_HELD else ""

    def rest(self) -> str:
        """Return the text that was held back; the next piece begins another text."""
        said = self._until(len(self._raw))
        self._raw, self._shown = "", 0
        return said

    def _until(self, end: int) -> str:
        if end <= self._shown:
            return ""
        spans: list[tuple[int, int]] = []
        for start, stop in sorted(m.span() for p in self._patterns for m in p.finditer(self._raw, self._shown) if m.end() > m.start()):
            if spans and start < spans[-1][1]:
                spans[-1] = spans[-1][0], max(stop, spans[-1][1])
            else:
                spans.append((start, stop))
        shown, at = "", self._shown
        for start, stop in spans:
            if stop > end:
                end = min(end, start)
                break
            found = self._raw[start:stop]
            shown += self._raw[at:start] + (found if PLACEHOLDER.fullmatch(found) else HIDDEN)
            at = stop
        shown += self._raw[at:end]
        keep = max(0, end - self._held)
        self._raw, self._shown = self._raw[keep:], end - keep
        return shown


class StreamedFields:
    """Streamed text with the value of each JSON field of `names` replaced by `HIDDEN`, however it is cut into pieces.

    This also covers JSON inside a text of JSON, whose quotes are escaped, names in other quotes or none, which models write and readers accept,
    and keywords of a call, `log_in(password="x")`. Only a possible beginning of such a field's name is held back.
    """

    __slots__ = (
        "_begun", "_brackets", "_depth", "_escapes", "_find", "_gap", "_held", "_in_text", "_joins", "_names", "_quotes", "_run", "_state",
    )  # fmt: skip

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        names = "|".join(map(re.escape, self._names))
        self._find = re.compile(
            rf"""(\\{{0,15}})(["'])(?:{names})\1\2|[\u201c\u201d\u2018\u2019](?:{names})[\u201c\u201d\u2018\u2019]|[{{(,]\s{{0,200}}(?:{names})(?=[\s:=])"""
        )
        self._held, self._state = "", "text"
        self._escapes = 0  # how many backslashes are before a quote at this field
        self._depth, self._in_text, self._begun, self._run = 0, "", "", 0  # place in the value: brackets, in a text, its start
        self._quotes = 0  # of a text: 0 one quote, 1 just begun, 2 just begun or empty, 3 three quotes, 4 and 5 possibly ending
        self._joins, self._gap = False, ""  # whether another text may continue this one, as in a call; the characters between them
        self._brackets = "{[", "}]"

    def add(self, piece: str) -> str:
        """Return the text that can be shown now. A long piece is processed in short ones, because each is copied for every field in it."""
        return "".join([self._add(piece[at : at + AT_ONCE]) for at in range(0, len(piece), AT_ONCE)])

    def _add(self, piece: str) -> str:
        self._held += piece
        shown, before = "", (-1, "")
        while self._held and before != (len(self._held), self._state):
            before = len(self._held), self._state
            shown += self._name() if self._state == "text" else self._colon() if self._state == "colon" else self._value()
        return shown

    def rest(self) -> str:
        """Return the text that was held back; the next piece begins another text."""
        held, text = self._held, self._state == "text"
        self._held, self._state = "", "text"
        return held if text else ""

    def _taken(self, many: int) -> str:
        shown, self._held = self._held[:many], self._held[many:]
        return shown

    def _name(self) -> str:
        """Search for a field's name."""
        if found := self._find.search(self._held):
            self._state, self._escapes = "colon", len(found[1] or "")
            return self._taken(found.end())
        bare = _BARE.search(self._held)
        end = bare.start() if bare is not None and any(name.startswith(bare[1]) for name in self._names) else len(self._held)
        for quote in _QUOTE.finditer(self._held, 0, end):
            begun = self._held[quote.end() :].rstrip("\\")
            if any(name.startswith(begun) for name in self._names):
                return self._taken(quote.start())
        return self._taken(end)

    def _colon(self) -> str:
        """Search for the colon or equals sign that makes a text a name."""
        after = self._held.lstrip()
        if after:
            self._state = "value" if after[0] in ":=" else "text"
            self._depth, self._in_text, self._begun, self._run = 0, "", "", 0
            self._quotes, self._joins, self._gap = 0, False, ""
            self._brackets = ("{[(", "}])") if after[0] == "=" else ("{[", "}]")  # in JSON a parenthesis is an ordinary character
        return self._taken(len(self._held) - len(after) + after.startswith((":", "=")))

    def _value(self) -> str:
        """Skip the available part of the value; return its replacement where it begins."""
        begun, end = self._begun, len(self._held)
        for at, sign in enumerate(self._held):
            escapes, self._run = self._run, self._run + 1 if sign == "\\" else 0
            over = None if sign == "\\" and self._quotes != 2 else self._over(sign, escapes)
            if over is not None:
                end, self._state = at + over, "text"
                break
        self._taken(end)
        quote = "\\" * self._escapes + '"'
        return (f"{quote}{HIDDEN}{quote}" if self._begun and not begun else "") + (self._gap.strip("+") if self._state == "text" else "")

    def _over(self, sign: str, escapes: int) -> int | None:
        """Return whether the value ends before (0) or after (1) this character, None if it continues."""
        if self._in_text:
            even = escapes % (2 * self._escapes + 2) == self._escapes if sign == '"' else escapes % 2 == 0
            over = self._closed(closes=even and sign == self._in_text)
            if over is None:
                return None
            self._in_text, self._quotes, self._joins, self._gap = "", 0, "(" in self._brackets[0], ""
            return over if not self._depth and not self._joins else None if over else self._over(sign, escapes)
        if self._joins and not self._depth and self._between(sign):
            return None
        if self._gap.strip("+"):
            if sign not in _ENDS:
                return 0
            self._gap = ""
        opening, closing = self._brackets
        prefixed = self._joins or (0 < len(self._begun) < 3 and _PREFIXES.issuperset(self._begun))
        if not self._depth and (sign == "," or sign in closing or (self._begun and (sign.isspace() or (sign == '"' and not prefixed)))):
            return 0
        self._in_text = _ENDS.get(sign, "") if sign == '"' or self._depth or not self._begun or prefixed else ""
        self._quotes = int(sign in "\"'" and not self._escapes)
        self._begun = (self._begun + sign)[:3] if self._begun or not (sign.isspace() or sign in "=>") else ""
        self._depth += (sign in opening) - (sign in closing)
        return 1 if sign in closing and not self._depth and self._begun[0] in opening else None

    def _between(self, sign: str) -> bool:
        """Whether a character may separate two texts that are one value, `"a" "b"` or `"a" + f"b"`. It is kept in case they are not."""
        if sign == "+" and not self._gap.strip():
            self._gap = "+"
        elif sign.isspace() and not self._gap.strip("+").strip():
            self._gap = self._gap or sign
        elif self._gap.strip("+") and sign in _PREFIXES and len(self._gap) < 3:
            self._gap += sign
        else:
            return False
        return True

    def _closed(self, *, closes: bool) -> int | None:
        """Return whether a text ends before (0) or after (1) this character, possibly a quote that `closes` it. Three quotes are closed by three."""
        if (self._quotes == 2 and not closes) or (self._quotes in (0, 5) and closes):
            return int(closes)
        self._quotes = self._quotes + 1 if closes else 3 if self._quotes > 2 else 0
        return None


def hiding(patterns: Sequence[str], fields: Collection[str]) -> tuple[StreamedFields | Streamed, ...]:
    """Return what hides JSON fields and pattern matches in streamed text: each step gets the output of the step before it."""
    return (*((StreamedFields(fields),) if fields else ()), *((Streamed(patterns),) if patterns else ()))


def hidden(value: Any, patterns: Sequence[str] = (), fields: Collection[str] = ()) -> Any:
    """Return JSON data with matches of `patterns`, and `fields` of JSON in texts, replaced by `HIDDEN`; each text on its own."""
    chain = hiding(patterns, fields)

    def text(said: str) -> str:
        for streamed in chain:
            said = streamed.add(said) + streamed.rest()
        return said

    return walk(value, text)


def rejected(text: str, specs: Iterable[ToolSpec]) -> str:
    """Return a text that is not a plan with the sensitive fields of JSON hidden; hidden whole if a call of such a tool is written in another form.

    `put("k", "hunter2")` and `<put><secret>hunter2</secret></put>` are calls in which no field could be found to hide.
    """
    sensitive = [spec for spec in specs if spec.sensitive]
    shown = hidden(text, fields=sensitive_fields(sensitive))
    names = "|".join(re.sub("[^A-Za-z0-9]", "[^A-Za-z0-9]?", spec.name) for spec in sensitive)
    calls = re.split(rf"\b(?:{names})(?:[\"']?\s*[({{<>\[]|[:=\s]*\n)", shown, flags=re.IGNORECASE)[1:] if names else []
    return shown if all(HIDDEN in call for call in calls) else HIDDEN


def _between(stays: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """Return a text with everything outside the matches of `stays` changed."""
    done: list[str] = []
    at = 0
    for match in stays.finditer(text):
        part = text[at : match.start()]
        done += change(part) if part else "", match[0]
        at = match.end()
    return "".join([*done, change(text[at:]) if at < len(text) else ""])


def _around(text: str, rest: Callable[[str], str]) -> str:
    """Return `rest` of a text; a text with a placeholder was processed already."""
    return text if PLACEHOLDER.search(text) else rest(text)


def _stray(name: str, spec: ToolSpec) -> bool:
    """Whether a tool without additional arguments does not have an argument of this name."""
    return spec.input_schema.get("additionalProperties") is False and name not in spec.input_schema.get("properties", {})


def _strange(tool: str, specs: Mapping[str, ToolSpec]) -> ToolSpec | None:
    """Return a spec for a tool that does not exist, because the call may be meant for one with sensitive fields. None if none has them."""
    fields = sensitive_fields(specs.values())
    return ToolSpec(name=tool, description="", input_schema={}, sensitive=tuple(sorted(fields))) if fields else None


def sensitive_fields(specs: Iterable[ToolSpec]) -> frozenset[str]:
    """Return the names of the fields that the tools declare sensitive."""
    return frozenset([name for spec in specs for name in spec.sensitive])


def redacted_start(started: RunStarted, redactor: Redactor) -> RunStarted:
    """Return the opening of a run with every match in texts written by people replaced: goal, variables, attachments, memory, instructions, rules."""
    agent = started.agent
    redactor.whose = "parent" if started.parent else "user"
    started = msgspec.structs.replace(
        started,
        goal=redactor.text(started.goal),
        variables=redactor.data(started.variables),
        attachments=tuple(redactor.data(started.attachments)),
    )
    redactor.whose = "memory"
    started = msgspec.structs.replace(started, seed_memory=tuple(redactor.data(started.seed_memory)))
    redactor.whose = "operator"
    return msgspec.structs.replace(
        started,
        agent=msgspec.structs.replace(
            agent,
            instructions=redactor.text(agent.instructions),
            meta=redactor.data(agent.meta),
            rules=tuple(redactor.data(agent.rules)),
        ),
    )


def placeholders(value: Any) -> set[str]:
    """Return the placeholders in JSON data."""
    found: set[str] = set()

    def look(text: str) -> str:
        found.update(PLACEHOLDER.findall(text))
        return text

    walk(value, look)
    return found


def resolve(value: Any, secrets: dict[str, Any]) -> Any:
    """Return JSON data with known placeholders replaced by their values. A placeholder that is the whole text becomes the value with its type."""
    if isinstance(value, str):
        if PLACEHOLDER.fullmatch(value):
            return secrets.get(value, value)
        return PLACEHOLDER.sub(lambda m: str(secrets.get(m[0], m[0])), value)
    if isinstance(value, dict):
        return {k: resolve(v, secrets) for k, v in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [resolve(v, secrets) for v in cast("list[Any]", value)]
    return value
