"""Files that cannot be sent: the caller is told before anything is recorded, the model in a line of text. Over real HTTP."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from detent import Agent, Engine, tool
from detent.core.errors import ConfigError
from detent.planners.model import attachments
from detent.planners.model.planner import ModelPlanner
from planners.model.chat_server import ChatServer, Entry, says
from planners.model.function_models import Asked, calls

pytestmark = thinned

PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n.").decode()


def run(script: list[Entry], *given: Any, tools: Any = ()) -> tuple[Any, list[str]]:
    """Run with these attachments; return the result, and what was sent as texts."""

    async def go(server: ChatServer) -> Any:
        planner = ModelPlanner("openai:served", settings={"base_url": server.url})
        async with Engine(store="ram:", planner=planner) as engine:
            try:
                result = await engine.run(Agent(name="a", tools=tools), "go", attachments=given)
                again = await engine.replay(result.run_id)
                assert again.identical, again.divergence
                return result
            except ConfigError:
                assert await engine.list_runs() == [] and server.requests == []
                raise
            finally:
                await planner.close()

    with ChatServer(script) as server:
        result = asyncio.run(go(server))
    return result, [json.dumps(request, ensure_ascii=False) for request in server.requests]


def test_a_file_that_is_not_there_is_told_before_anything_is_recorded(tmp_path: Path) -> None:
    """With its path and the reason, and nobody is asked."""
    with pytest.raises(ConfigError, match=r"gone\.png.*No such file"):
        run([says("x")], {"type": "image", "path": str(tmp_path / "gone.png")})


def test_a_file_that_is_none_is_told_and_never_read(tmp_path: Path) -> None:
    """A pipe would be waited for, a device read without end."""
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path, tmp_path / "pipe.png", Path("/dev/zero")):
        with pytest.raises(ConfigError, match="it is not a file"):
            run([says("x")], {"type": "image", "media_type": "image/png", "path": str(path)})


def test_a_file_that_is_too_large_is_told_before_anything_is_recorded(tmp_path: Path) -> None:
    """A large one is not read whole to find that out."""
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(attachments.MAX_BYTES + 1)
    with pytest.raises(ConfigError, match=f"large.png.*larger than {attachments.MAX_BYTES} bytes"):
        run([says("x")], {"type": "image", "path": str(tmp_path / "large.png")})


def test_a_file_of_which_nobody_knows_the_kind_is_told(tmp_path: Path) -> None:
    """A provider would refuse the whole prompt."""
    (tmp_path / "thing").write_bytes(b"x")
    with pytest.raises(ConfigError, match="media_type is not known"):
        run([says("x")], {"type": "file", "path": str(tmp_path / "thing")})


def test_a_file_that_is_gone_after_the_start_is_sent_all_the_same(tmp_path: Path) -> None:
    """What a run was given stands in its log."""
    (tmp_path / "a.png").write_bytes(base64.b64decode(PIXEL))

    def look(asked: dict[str, Any]) -> Any:
        (tmp_path / "a.png").unlink(missing_ok=True)
        return says("", ("c", "nothing", {})) if len(asked["messages"]) < 4 else says("done")

    result, sent = run([look], {"type": "image", "path": str(tmp_path / "a.png")})
    assert result.output == "done" and len(sent) == 2 and all(PIXEL in request for request in sent)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"type": "image", "media_type": "image/png", "data": "%%%"}, "its data is not base64"),
        ({"type": "image", "media_type": "image/png", "data": PIXEL * 9}, "it is larger than 64 bytes"),
        ({"type": "image", "data": PIXEL}, "its media_type is not known"),
        ({"type": "image", "media_type": "image/png", "path": "/etc/passwd"}, "a tool may not name files"),
        ({"type": "image", "url": "http://127.0.0.1:1/x.png"}, "the tool that named it is not trusted"),
    ],
)
def test_what_a_tool_gives_and_cannot_be_sent_is_a_line_of_text(given: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on: the model sees why it sees nothing, and nothing was opened."""
    monkeypatch.setattr(attachments, "MAX_BYTES", 64)

    @tool(side_effect="read")
    def shoot() -> Any:
        """Take a picture."""
        return given

    result, sent = run([says("", ("c", "shoot", {})), says("done")], tools=[shoot])
    assert result.output == "done" and told in sent[1] and "root:" not in sent[1] and "image_url" not in sent[1]


# Files by their path ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "kind", "media_type"),
    [
        ("a.png", b"\x89PNG\x00\xff", "image", "image/png"),
        ("a.mp3", b"ID3\x00\xff", "audio", "audio/mpeg"),
        ("a.pdf", b"%PDF\x00\xff", "file", "application/pdf"),
        ("a.md", b"# Hello", "text", None),
        ("notes", b"plain", "text", None),
        ("a.svg", b"<svg/>", "text", None),
        ("a.pdf", b"no PDF at all", "text", None),
    ],
)
def test_a_path_is_an_attachment_by_what_the_file_is(tmp_path: Path, name: str, data: bytes, kind: str, media_type: str | None) -> None:
    """Text is text, whatever it is called; anything else is what its name ends in."""
    (tmp_path / name).write_bytes(data)
    made = attachments.inlined(tmp_path / name)
    assert (made["type"], made["name"], made.get("media_type")) == (kind, name, media_type)
    assert made.get("text", "").encode() == data or base64.b64decode(made["data"]) == data


def test_a_path_that_cannot_be_attached_is_refused_with_the_reason(tmp_path: Path) -> None:
    """No file, a pipe that never ends, bytes of which nobody knows the kind, too much."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "blob").write_bytes(b"\x00\xff")
    with (tmp_path / "large.png").open("wb") as file:
        file.truncate(attachments.MAX_BYTES + 1)
    for name, why in (
        ("gone", "No such file"),
        ("pipe.png", "not a file"),
        ("blob", "rename it"),
        ("large.png", "larger than"),
        (".", "not a file"),
    ):
        with pytest.raises(ConfigError, match=why):
            run([says("x")], tmp_path / name)


# What a model does not accept ---------------------------------------------------------------------------------------------------

DEAF = {"supports_audio_file_input": False, "supports_video_input": False, "supported_document_media_types": frozenset({"text/plain"})}
AUDIO = {"type": "audio", "name": "talk.wav", "media_type": "audio/wav", "data": PIXEL}


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (AUDIO, "audio"),
        ({"type": "audio", "url": "https://example.com/talk.mp3"}, "audio"),
        ({"type": "file", "name": "talk.wav", "media_type": "audio/wav", "data": PIXEL}, "audio"),
        ({"type": "video", "name": "a.mp4", "media_type": "video/mp4", "data": PIXEL}, "video"),
        ({"type": "file", "name": "a.pdf", "media_type": "application/pdf", "data": PIXEL}, "application/pdf documents"),
    ],
)
def test_a_model_that_does_not_take_a_file_is_told_before_the_run_begins(given: dict[str, Any], what: str) -> None:
    """Nothing is recorded and nobody is asked; what the model takes goes through."""
    asked = Asked(["seen"], profile=DEAF)

    async def go() -> None:
        async with Engine(store="ram:", planner=ModelPlanner(asked.model)) as engine:
            with pytest.raises(ConfigError, match=f"does not accept {what}; nothing was recorded"):
                await engine.run(Agent(name="a"), "go", attachments=[given])
            assert await engine.list_runs() == [] and asked.messages == []
            picture = {"type": "image", "media_type": "image/png", "data": PIXEL}
            assert (await engine.run(Agent(name="a"), "go", attachments=[picture, {"type": "text", "text": "x"}])).output == "seen"

    asyncio.run(go())


def test_a_recording_goes_to_a_model_that_does_not_hear_where_the_agent_can_have_it_written_down() -> None:
    """The model is told of the tool in place of the sound."""
    asked = Asked([calls(("transcribe", {})), "seen"], profile=DEAF)

    @tool(side_effect="read")
    def transcribe() -> str:
        """Write down."""
        return "what was said"

    async def go() -> Any:
        async with Engine(store="ram:", planner=ModelPlanner(asked.model)) as engine:
            return await engine.run(Agent(name="a", tools=[transcribe]), "go", attachments=[AUDIO])

    assert asyncio.run(go()).output == "seen"
    assert "[audio talk.wav: not shown, this model does not take audio; call transcribe" in asked.said(0) and PIXEL not in asked.said(0)


def test_a_model_that_only_writes_text_takes_text_alone() -> None:
    """By its planner, or because it calls no tools."""

    async def go() -> None:
        async with Engine(store="ram:") as engine:
            for agent in (
                Agent(name="a", model="ollama:x", planner="on-device"),
                Agent(name="a", model="ollama:x", model_settings={"tool_calls": "text"}),
            ):
                with pytest.raises(ConfigError, match="does not accept images"):
                    await engine.run(agent, "go", attachments=[{"type": "image", "media_type": "image/png", "data": PIXEL}])

    asyncio.run(go())
