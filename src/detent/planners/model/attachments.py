"""Images, audio and files: one JSON shape in the goal, in replies and in tool results, and what a model is given of it.

    {"type": "image" | "audio" | "video" | "file" | "text",
     "media_type": "image/png",      # may be left out where the path's or URL's ending says it
     "data": "<base64>" | "url": "https://..." | "path": "/abs/or/relative" | "text": "...",
     "name": "chart.png"}            # optional, told to the model

Exactly one of `data`, `url`, `path` and `text` is given. A tool result is an attachment, or holds a list of them under `"attachments"`.
What a tool gave may name no path, and a URL only where the tool is declared `trust="trusted"`: otherwise a page that a tool has read
could make the program open files and addresses. What cannot be shown is told to the model as a line of text, never left out silently.
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
"""What a model's profile says of each kind, and what people call it."""
MAX_BYTES = 32 * 1024 * 1024
"""The largest file that is sent to a model."""


def is_attachment(value: Any) -> bool:
    """Whether a JSON value has the shape of an attachment."""
    if not isinstance(value, dict):
        return False
    said = cast("dict[str, Any]", value)
    return said.get("type") in KINDS and sum(isinstance(said.get(source), str) for source in SOURCES) == 1 and _only_known(said)


def _only_known(said: dict[str, Any]) -> bool:
    return set(said) <= {"type", "media_type", "name", *SOURCES} and (said["type"] == "text") == ("text" in said)


def split_result(value: Any) -> tuple[Any, list[dict[str, Any]]]:
    """Return what a tool result says beside its attachments, and the attachments; (value, []) when it has none."""
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
    """Return an attachment that a caller gave; raise `ConfigError` saying what is wrong with its shape."""
    if is_attachment(value):
        return cast("dict[str, Any]", value)
    raise ConfigError(
        f'{where}: no attachment: {str(value)[:120]!r}; write {{"type": "image", "media_type": "image/png", "data": BASE64}}, '
        f"with one of {', '.join(SOURCES)} and a type of {', '.join(KINDS)}"
    )


def attachment_at(path: Path) -> dict[str, Any]:
    """Return a file as an attachment: its text where it is one, else its bytes with the type that its name ends in. Raise `ConfigError`."""
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
            f"attachment {str(path)!r}: it is not text, and its name does not end in what it is, such as .pdf or .png; rename it"
        )
    return {"type": kind, "name": path.name, "media_type": media_type, "data": base64.b64encode(data).decode()}


def not_taken(attachment: Mapping[str, Any], profile: Mapping[str, Any]) -> str:
    """Return what an attachment is that a model with this profile does not take, such as "audio"; "" for one that it takes."""
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
    """Return an attachment of the goal with the content of the file that it names; anything else as it is. Raise `ConfigError`.

    A `Path` stands for the attachment that its file is.

    What a run was given stands in its log: a file that changes later changes nothing, and another host can take the run on.
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
    """Return an attachment as pydantic-ai user content; `paths` and `urls` say whether it may name those, `profile` what the model takes.

    What cannot be read, may not be opened or is not taken becomes one line of text that says so; `instead` is what the model can do then.
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
    """Return the bytes and media type; raise `ValueError` saying why there are none."""
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
    """Return what stands in a file, at most a byte more than may be sent; raise `OSError`, and `ValueError` for what is none: some never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it cannot be read: it is not a file")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
