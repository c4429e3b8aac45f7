"""Finds the sensitive arguments of a tool: those where a wrong value would send, pay, reach, run or say something.

A tool declares them (`ToolSpec.sinks`). Otherwise the names of its arguments decide, and a value that looks like an address is sensitive under any
name. If a tool changes something and none of its arguments is recognised, all of them are sensitive.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal, cast

from detent.ports import ToolSpec

Kind = Literal["recipient", "amount", "path", "url", "command", "identifier", "content"]


def _words(said: str) -> frozenset[str]:
    return frozenset(said.split())


NAMES: dict[Kind, frozenset[str]] = {
    "amount": _words("amount amounts price total sum cost quantity qty balance payment fee budget salary credit debit"),
    "recipient": _words(
        "to cc bcc recipient recipients receiver receivers addressee address addresses email emails mail participant participants attendee "
        "attendees invitee invitees guest guests user users username member members payee beneficiary account iban bic phone contact contacts "
        "channel channels destination target targets recipient_id share with owner assignee reviewer reviewers group groups team"
    ),
    "path": _words("path paths file files filename filenames filepath dir directory folder folders source src dest root output"),
    "url": _words("url urls uri link links href endpoint host hostname domain webhook site website server origin callback remote"),
    "command": _words("command commands cmd script code sql shell argv args program statement expression query pipeline job"),
    "identifier": _words(
        "id ids uuid guid key keys token tokens password passwords secret secrets credential credentials pin name names first last reference "
        "ref slug identifier number branch tag sku role roles permission permissions city street country zip"
    ),
    "content": _words(
        "content contents body text message messages subject title description comment comments note notes data payload html markdown patch "
        "diff value values attachment attachments summary reply caption prompt document reason label labels location memo details"
    ),
}
_ORDER: tuple[Kind, ...] = ("amount", "recipient", "path", "url", "command", "identifier", "content")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_FORMATS: dict[str, Kind] = {
    "email": "recipient", "idn-email": "recipient", "uri": "url", "uri-reference": "url", "iri": "url", "hostname": "url", "ipv4": "url", "ipv6": "url",
    "uuid": "identifier", "path": "path", "file-path": "path", "directory-path": "path", "password": "identifier",
}  # fmt: skip
_ADDRESS = re.compile(
    r"\s*(?:mailto:)?(?:[\w.+-]+@[\w-]+(?:\.[\w-]+)+|(?:https?|ftp|wss?|file)://\S+|www\.\S+|(?:~|\.{0,2})/\S+|[A-Za-z]:\\\S+)\s*"
)
_IBAN = re.compile(r"\s*[A-Za-z]{2}\d{2}(?: ?[A-Za-z0-9]{4}){2,7}(?: ?[A-Za-z0-9]{1,4})?\s*")


@lru_cache(maxsize=4096)
def kind_of_name(name: str) -> Kind | None:
    """Return what a field with this name holds, or None if the name does not tell. It understands `recipientEmail`, `file_path` and `TO`."""
    words = frozenset(re.split(r"[^a-z0-9]+", _CAMEL.sub("_", name).lower()))
    return next((kind for kind in _ORDER if words & NAMES[kind]), None)


class Sinks:
    """The sensitive arguments of one tool."""

    __slots__ = ("_all", "_formats", "_names", "_paths", "declared", "spec")

    def __init__(self, spec: ToolSpec) -> None:
        self.spec = spec
        self.declared = spec.sinks is not None
        self._paths = spec.sinks or ()
        properties = cast("dict[str, Any]", spec.input_schema.get("properties") or {})
        self._formats: dict[str, Kind] = {
            name: kind for name, said in properties.items() if (kind := _FORMATS.get(str(_dict(said).get("format", "")))) is not None
        }
        self._names = {name for name in properties if kind_of_name(name) is not None} | set(self._formats)
        self._all = not self._names

    @property
    def any(self) -> bool:
        """Whether the tool has a sensitive argument."""
        return bool(self._paths) if self.declared else True

    def is_sink(self, path: str, value: Any) -> bool:
        """Return whether the leaf `value` at `path` is sensitive. Truth values are sensitive only if the tool declares them."""
        names = _names(path)
        if self.declared:
            bare = ".".join(names)
            return any(bare == p or bare.startswith(p + ".") for p in self._paths)
        if value is None or isinstance(value, bool):
            return False
        if self._all or names[0] in self._formats or any(kind_of_name(name) is not None for name in names):
            return True
        return isinstance(value, str) and bool(_ADDRESS.fullmatch(value) or _IBAN.fullmatch(value))


def _names(path: str) -> list[str]:
    """Return the field names along a path, without list indices."""
    return [part.split("[", 1)[0].removesuffix("{}") for part in path.split(".")]


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
