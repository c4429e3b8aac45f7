"""Images, audio and files: one JSON shape in the goal, in replies and in tool results, and its form for a model.

    {"type": "image" | "audio" | "video" | "file" | "text",
     "media_type": "image/png",      # optional if the ending of the path or URL says it
     "data": "<base64>" | "url": "https://..." | "path": "/abs/or/relative" | "text": "...",
     "name": "chart.png"}            # optional, shown to the model

Exactly one of `data`, `url`, `path` and `text` is given. A tool result is an attachment, or has a list of them under `"attachments"`.
A tool result must not name a path, and may name a URL only if the tool is declared `trust="trusted"`. Otherwise a page that a tool has read
could make the program open files and addresses. If an attachment cannot be shown, the model gets a line of text about it; none is dropped silently.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import mimetypes
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from detent.core.errors import ConfigError

KINDS = ("image", "audio", "video", "file", "text")
SOURCES = ("data", "url", "path", "text")
_TAKEN = {
    "image": ("supports_image_input", "images"),
    "audio": ("supports_audio_file_input", "audio"),
    "video": ("supports_video_input", "video"),
    "file": ("supports_document_input", "documents"),
}
"""For each kind its name in a model's profile, and its name for people."""
MAX_BYTES = 32 * 1024 * 1024
"""The largest file that is sent to a model."""


def is_attachment(value: Any) -> bool:
    """Whether a JSON value has the form of an attachment."""
    if not isinstance(value, dict):
        return False
    said = cast("dict[str, Any]", value)
    return said.get("type") in KINDS and sum(isinstance(said.get(source), str) for source in SOURCES) == 1 and _only_known(said)


def _only_known(said: dict[str, Any]) -> bool:
    return set(said) <= {"type", "media_type", "name", *SOURCES} and (said["type"] == "text") == ("text" in said)


def split_result(value: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return a tool result without its attachments, and the attachments; (value, []) if it has none."""
    if is_attachment(value):
        return None, [value]
    if isinstance(value, list) and value and all(is_attachment(v) for v in cast("list[Any]", value)):
        return None, list(cast("list[dict[str, Any]]", value))
    if isinstance(value, dict):
        said = cast("dict[str, Any]", value)
        listed = said.get("attachments")
        if isinstance(listed, list) and listed and all(is_attachment(v) for v in cast("list[Any]", listed)):
            rest = {k: v for k, v in said.items() if k != "attachments"}
            return rest or None, list(cast("list[dict[str, Any]]", listed))
    return cast("Any", value), []


def checked_attachment(value: Any, where: str) -> dict[str, Any]:
    """Return an attachment from a caller. Raise `ConfigError` with the problem if its form is wrong."""
    if is_attachment(value):
        return cast("dict[str, Any]", value)
    raise ConfigError(
        f'{where}: not an attachment: {str(value)[:120]!r}; write {{"type": "image", "media_type": "image/png", "data": BASE64}}, '
        f"with one of {', '.join(SOURCES)} and a type of {', '.join(KINDS)}"
    )


def attachment_at(path: Path) -> dict[str, Any]:
    """Return a file as an attachment: as text if it is text, else its bytes with the type of its file name. Raise `ConfigError`."""
    media_type = mimetypes.guess_type(path.name)[0] or ""
    kind = media_type.partition("/")[0]
    try:
        data = _read(path)
    except OSError as error:
        raise ConfigError(f"attachment {str(path)!r}: it cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigError(f"attachment {str(path)!r}: {error}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"attachment {str(path)!r}: it is larger than {MAX_BYTES} bytes; attach a part of it")
    if kind not in ("image", "audio", "video") or media_type == "image/svg+xml":
        with contextlib.suppress(UnicodeDecodeError):
            if "\0" not in (text := data.decode("utf-8-sig")):
                return {"type": "text", "name": path.name, "text": text}
        kind = "file"
    if not media_type:
        raise ConfigError(
            f"attachment {str(path)!r}: it is not text, and its name has no ending for its type, such as .pdf or .png; rename it"
        )
    return {"type": kind, "name": path.name, "media_type": media_type, "data": base64.b64encode(data).decode()}


def not_taken(attachment: Mapping[str, Any], profile: Mapping[str, Any]) -> str:
    """Return the kind of an attachment that a model with this profile does not take, such as "audio"; "" if it takes it."""
    media_type: str = (
        attachment.get("media_type") or mimetypes.guess_type(str(attachment.get("name") or attachment.get("url") or ""))[0] or ""
    )
    kind = media_type.partition("/")[0] if media_type.startswith(("image/", "audio/", "video/")) else attachment["type"]
    if kind == "text":
        return ""
    flag, what = _TAKEN[kind]
    if not profile.get(flag, True):
        return what
    taken: Any = profile.get("supported_document_media_types")
    if kind != "file" or taken is None or media_type in taken:
        return ""
    from pydantic_ai.messages import DocumentMediaType

    return f"{media_type} documents" if media_type in get_args(DocumentMediaType) else ""


def inlined(value: Any) -> Any:
    """Return an attachment of the goal with the content of the file that it names; anything else unchanged. Raise `ConfigError`.

    A `Path` becomes the attachment of its file.

    The log has the inputs of a run: a file that changes later changes nothing, and another host can resume the run.
    """
    if isinstance(value, Path):
        return attachment_at(value)
    if not is_attachment(value) or "path" not in value:
        return value
    said = cast("dict[str, Any]", value)
    try:
        data, media_type = bytes_of(said, paths=True)
    except ValueError as error:
        raise ConfigError(f"attachment {said['path']!r}: {error}") from None
    rest = {key: part for key, part in said.items() if key != "path"}
    return {"name": Path(said["path"]).name, **rest, "media_type": media_type, "data": base64.b64encode(data).decode()}


def content_of(
    attachment: dict[str, Any], *, paths: bool, urls: bool, profile: Mapping[str, Any] | None = None, instead: str = ""
) -> list[Any]:
    """Return an attachment as pydantic-ai user content. `paths` and `urls` allow those forms, `profile` says what the model takes.

    If it cannot be read, must not be opened or is not taken, it becomes a line of text that says so. `instead` is what the model can do then.
    """
    from pydantic_ai import messages as m

    kind, name = attachment["type"], attachment.get("name", "")
    if profile is not None and (what := not_taken(attachment, profile)):
        return [f"[{kind} {name or 'without a name'}: not shown, this model does not take {what}{instead}]"]
    label = [f"[{kind} {name}]"] if name else []
    if kind == "text":
        return [*label, attachment["text"]]
    if "url" in attachment:
        if not urls:
            return [f"[{kind} at {attachment['url']}: not opened, the tool that named it is not trusted]"]
        given = attachment.get("media_type")
        shape: Any = {"image": m.ImageUrl, "audio": m.AudioUrl, "video": m.VideoUrl, "file": m.DocumentUrl}[kind]
        return [*label, shape(url=attachment["url"], media_type=given)]
    try:
        data, media_type = bytes_of(attachment, paths=paths)
    except ValueError as error:
        return [f"[{kind} {name or attachment.get('path', '')}: {error}]"]
    return [*label, m.BinaryContent.narrow_type(m.BinaryContent(data=data, media_type=media_type))]


def bytes_of(attachment: dict[str, Any], *, paths: bool) -> tuple[bytes, str]:
    """Return the bytes and media type. Raise `ValueError` with the reason if there are none."""
    media_type = attachment.get("media_type") or mimetypes.guess_type(attachment.get("path") or attachment.get("name") or "")[0]
    if "path" in attachment:
        if not paths:
            raise ValueError("not opened, a tool may not name files")
        try:
            data = _read(Path(attachment["path"]))
        except OSError as error:
            raise ValueError(f"it cannot be read: {error.strerror or error}") from None
    else:
        try:
            data = base64.b64decode(attachment["data"], validate=True)
        except (binascii.Error, ValueError):
            raise ValueError("its data is not base64") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"not sent, it is larger than {MAX_BYTES} bytes")
    if not media_type:
        raise ValueError("its media_type is not known")
    return data, media_type


def _read(path: Path) -> bytes:
    """Return the content of a file, at most one byte more than may be sent. Raise `OSError`, or `ValueError` if it is not a file: some never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it cannot be read: it is not a file")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
