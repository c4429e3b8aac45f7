"""`transcribe`: turns a recording into text. The recording is attached to the run or is a file in the workspace.

The model call passes the run's gateway, like the planner's calls. The text is data: the result is not trusted.
"""

from __future__ import annotations

import asyncio
import base64
import mimetypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from detent.core.errors import ModelCallFailure, ToolFailed
from detent.ports import ToolContext, Transcriber
from detent.ports.outside import BoundReached
from detent.tools.functions.function import Tool, tool
from detent.tools.workspace.confine import Workspace

MOST_BYTES = 32 * 1024 * 1024
"""The largest recording that is sent, in bytes."""
LONGEST_S = 900.0


def transcribe_tool(transcriber: Callable[[], Transcriber], root: Callable[[], str]) -> Tool[..., Any]:
    """Return the tool. `transcriber` returns the speech-to-text adapter, `root` is the workspace directory ("": none)."""

    @tool(side_effect="read", timeout_s=LONGEST_S)
    async def transcribe(recording: str = "", language: str = "", hint: str = "", *, context: ToolContext) -> dict[str, Any]:
        """Transcribe the speech in a recording; returns text, and language, duration in seconds and segments where they are known.

        Args:
            recording: the name of a recording that is attached, or the path of an audio file relative to the workspace root; may be left out
                where one recording is attached.
            language: the ISO 639-1 code of the language that is spoken, if you know it.
            hint: names and terms that may be spoken.
        """
        audio = _attached(recording, context.attachments) or await asyncio.to_thread(_read, recording, root())
        try:
            made = await transcriber().transcribe(audio, hint=hint, language=language, models=context.models)
        except ModelCallFailure as error:
            raise ToolFailed(str(error), error_code="transcription_failed") from error
        except BoundReached as error:
            raise ToolFailed(f"not transcribed: {error}", error_code="budget_exhausted") from error
        said = {"text": made.text, "language": made.language, "duration": made.duration, "segments": msgspec.to_builtins(made.segments)}
        return {name: value for name, value in said.items() if value}

    return transcribe


def _attached(recording: str, attachments: Sequence[Any]) -> dict[str, Any] | None:
    """Return the attached recording with this name, or the only one; None if none has this name. Raise `ToolFailed`."""
    known = [
        cast("dict[str, Any]", one) for one in attachments if isinstance(one, dict) and cast("dict[str, Any]", one).get("type") == "audio"
    ]
    named = [one for one in known if one.get("name") == recording]
    if recording:
        return named[0] if named else None
    if len(known) == 1:
        return known[0]
    names = ", ".join(str(one.get("name") or "one without a name") for one in known)
    told = f"{len(known)} recordings are attached ({names})" if known else "no recording is attached"
    raise ToolFailed(f"{told}; name the one to transcribe with recording", error_code="invalid_arguments")


def _read(path: str, root: str) -> dict[str, Any]:
    """Return an audio file of the workspace as an attachment. Raise `ToolFailed`."""
    if not root:
        raise ToolFailed(f"no recording named {path[:200]!r} is attached, and there is no workspace to look in", error_code="not_found")
    media_type = mimetypes.guess_type(path)[0] or ""
    if not media_type.startswith("audio/"):
        raise ToolFailed(
            f"{path[:200]!r} does not have the name of an audio file; give one, such as meeting.mp3", error_code="invalid_arguments"
        )
    data = b""
    with Workspace(Path(root)).reading(path) as descriptor:
        while len(data) <= MOST_BYTES and (chunk := os.read(descriptor, 1_048_576)):
            data += chunk
    if len(data) > MOST_BYTES:
        raise ToolFailed(f"{path[:200]!r} is larger than {MOST_BYTES} bytes; cut it into parts", error_code="too_large")
    return {"type": "audio", "name": path, "media_type": media_type, "data": base64.b64encode(data).decode()}
