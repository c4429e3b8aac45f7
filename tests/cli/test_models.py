"""`detent run` with models, against a server on loopback: options alone, options over a file, what is shown, and what is missing."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from cli.desk import Desk
from cli.terminals import at_a_terminal
from forked import asking
from planners.model.chat_server import ChatServer, fails, says

NO_KEYS = dict.fromkeys(
    (
        *(
            "OPENAI_API_KEY",
            "ANTHROPIC_API_KEY",
            "GOOGLE_API_KEY",
            "GEMINI_API_KEY",
            "GROQ_API_KEY",
            "MISTRAL_API_KEY",
            "OPENROUTER_API_KEY",
        ),
        *("AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_PROFILE", "OPENAI_BASE_URL", "OLLAMA_BASE_URL"),
    ),
    "",
)
RULES = 'name = "ruled"\n\n[[rules]]\nname = "say"\nanswer = "by rule"\n'
FILE = """\
name = "filed"
model = "filed-model"
instructions = "Be brief."
tools = ["./tools.py:note"]

[model_settings]
temperature = 0.1
max_tokens = 500
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A directory with tools and no agent file."""
    made = Desk(tmp_path)
    made.imports = asking("openai")
    (tmp_path / "agent.toml").unlink()
    return made


def spec(desk: Desk) -> dict[str, Any]:
    """Return the agent that stands in the log of the last run."""
    return json.loads(desk.detent("export", "last").out.splitlines()[0])["body"]["agent"]


def test_a_model_needs_no_agent_file_and_a_later_process_needs_no_options(desk: Desk) -> None:
    """Everything that the options said stands in the log: the run waits, and another process takes it on with the same server and settings."""
    script = [says(None, ("c1", "wipe", {"name": "x"})), says("It is gone.")]
    with ChatServer(script) as server:
        options = ["--base-url", server.url, "--temperature", "0.5", "--no-stream", "--small-model", "tiny", "--tools", "./tools.py:wipe"]
        waits = desk.detent("run", "--model", "served", *options, "--json", "wipe x", **NO_KEYS)
        assert waits.code == 3, waits.err
        (asked,) = waits.json["approvals"]
        done = desk.detent("approve", "last", asked["call_id"], "--json", **NO_KEYS)
    assert (done.code, done.json["output"], desk.notes) == (0, "It is gone.", ["wiped x"]), done.err
    assert [(r["model"], r["temperature"], bool(r.get("stream"))) for r in server.requests] == [("served", 0.5, False)] * 2
    agent = spec(desk)
    assert (agent["name"], agent["small_model"], agent["tools"]) == ("assistant", "tiny", ["wipe"])


def test_options_go_before_the_agent_file(desk: Desk) -> None:
    """What they do not say stays as the file has it; a model takes the place of rules."""
    desk.write("filed.toml", FILE)
    desk.write("ruled.toml", RULES)
    with ChatServer([says("done")]) as server:
        changed = desk.detent(
            "run", "--agent", "filed.toml", "--model", "other", "--temperature", "0.9", "--base-url", server.url, "go", **NO_KEYS
        )
        assert changed.code == 0, changed.err
        ruled = desk.detent("run", "--agent", "ruled.toml", "--model", "third", "--base-url", server.url, "go", **NO_KEYS)
        assert ruled.code == 0, ruled.err
    first, second = server.requests
    assert (first["model"], first["temperature"], first.get("max_completion_tokens", first.get("max_tokens"))) == ("other", 0.9, 500)
    assert "Be brief." in str(first["messages"]) and [t["function"]["name"] for t in first["tools"]] == ["note"]
    assert second["model"] == "third" and not second.get("tools")


def test_a_named_workspace_brings_its_tools_and_nothing_else_does(desk: Desk) -> None:
    """Without one the model has no tools; `--tools` says which of them."""
    desk.write("text.txt", "a line")
    with ChatServer([says("hi"), says(None, ("c1", "read_file", {"path": "text.txt"})), says("read"), says("hi")]) as server:
        ask = ["run", "-m", "served", "--base-url", server.url]
        assert desk.detent(*ask, "hello", **NO_KEYS).code == 0
        read = desk.detent(*ask, "--workspace", ".", "read it", **NO_KEYS)
        assert (read.code, read.out) == (0, "read\n"), read.err
        assert desk.detent(*ask, "--workspace", ".", "--tools", "read_file,list_dir", "hello", **NO_KEYS).code == 0
    offered = [sorted(t["function"]["name"] for t in r.get("tools", [])) for r in server.requests]
    assert offered[0] == [] and {"read_file", "write_file", "exec"} <= set(offered[1])
    assert offered[3] == ["list_dir", "read_file"]
    assert "a line" in str(server.requests[2]["messages"])


def test_the_key_of_a_base_url_is_the_one_that_is_named(desk: Desk) -> None:
    """No other key goes there."""
    with ChatServer([says("hi")]) as server:
        keys = {**NO_KEYS, "OPENAI_API_KEY": "sk-other", "MINE": "sk-mine"}
        done = desk.detent("run", "-m", "served", "--base-url", server.url, "--api-key-env", "MINE", "hi", **keys)
    assert done.code == 0, done.err
    assert server.headers[0]["authorization"] == "Bearer sk-mine"
    assert "sk-other" not in str(server.headers)
    assert "sk-mine" not in desk.detent("export", "last").out


def test_names_behind_an_import_path_are_of_the_same_file(desk: Desk) -> None:
    """`./tools.py:note,wipe` means two tools of that file; a name that the file does not have is a tool by name."""
    with ChatServer([says("hi")]) as server:
        ask = ["run", "--model", "served", "--base-url", server.url, "--workspace", "."]
        for said in (
            ["--tools", "./tools.py:note, wipe,read_file"],
            ["--tools", "./tools.py:note,read_file", "--tools", "./tools.py:wipe"],
        ):
            assert desk.detent(*ask, *said, "hello", **NO_KEYS).code == 0
        unknown = desk.detent(*ask, "--tools", "./tools.py:note,wpie", "hello", **NO_KEYS)
        apart = desk.detent(*ask, "--tools", "./tools.py:note", "--tools", "wipe", "hello", **NO_KEYS)
    offered = [sorted(tool["function"]["name"] for tool in request["tools"]) for request in server.requests]
    assert offered == [["note", "read_file", "wipe"]] * 2
    assert unknown.code == 2 and "'wpie'" in unknown.err
    assert apart.code == 2 and "'wipe'" in apart.err


@pytest.mark.parametrize("provider", ["llamacpp", "vllm"])
def test_a_raw_text_model_is_selected_by_an_option_and_known_to_the_log(provider: str, desk: Desk) -> None:
    """Actions are read out of its text; a process that takes the run on plans in the same way."""
    call, answer = '{"type": "wipe", "name": "y"}', '{"type": "final_answer", "content": "gone"}'
    with ChatServer([says(f"Sure:\n```json\n{call}\n```"), says(answer)]) as server:
        url = server.url if provider == "vllm" else server.url.removesuffix("/v1")
        options = ["--planner", "on-device", "--base-url", url, "--tools", "./tools.py:wipe"]
        waits = desk.detent("run", "--model", f"{provider}:small", *options, "--json", "wipe y", **NO_KEYS)
        assert waits.code == 3, waits.err
        done = desk.detent("approve", "last", waits.json["approvals"][0]["call_id"], **NO_KEYS)
    assert (done.code, done.out, desk.notes) == (0, "gone\n", ["wiped y"]), done.err
    assert "tools" not in server.requests[0]
    assert ("json_schema" if provider == "llamacpp" else "response_format") in server.requests[0]
    assert spec(desk)["planner"] == "on-device"


def test_a_model_behind_an_api_that_calls_no_tools_works_by_an_option_and_is_known_to_the_log(desk: Desk) -> None:
    """Calls are read from its text, no tools are sent, each request is counted, another process plans alike, replay too."""
    ask, stop = '{"type": "ask_user", "question": "Which?"}', '{"type": "stop", "reason": "there is none"}'
    calls = '[{"tool": "note", "args": {"text": "a"}}, {"type": "note", "text": "b",}]'
    with ChatServer([says(f"Sure:\n```json\n{calls}\n```"), says(ask), says(stop)]) as server:
        options = ["--tool-calls", "text", "--base-url", server.url, "--tools", "./tools.py:note"]
        waits = desk.detent("run", "--model", "served", *options, "--json", "note them", **NO_KEYS)
        assert (waits.code, desk.notes) == (3, ["a", "b"]), waits.err
        done = desk.detent("reply", "last", "the second", "--json", **NO_KEYS)
    assert (done.code, done.json["reason"], done.json["usage"]["input_tokens"]) == (4, "stop_action", 300), done.err
    first, _, last = server.requests
    assert all("tools" not in r and "response_format" not in r for r in server.requests) and first["stream"]
    assert "- note(text: string): Write a line." in str(first["messages"])
    assert "the second" in str(last["messages"]) and "Observation (note): written" in str(last["messages"])
    assert spec(desk)["model_settings"]["tool_calls"] == "text"
    assert desk.detent("replay", "last").code == 0
    wrong = desk.detent("run", "--model", "served", "--planner", "on-device", *options, "go", **NO_KEYS)
    assert wrong.code == 2 and "tool_calls has no effect" in wrong.err


@thinned
@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        (["run", "hi"], {}, r"error: no agent was given.*no provider key is set.*\n.*`detent init`.*`detent doctor`.*\n"),
        (["run", "hi"], {"GROQ_API_KEY": "k"}, r"error: no agent was given.*\n.*detent run --model groq:.*`detent doctor`.*\n"),
        (["run", "-m", "anthropic:claude-sonnet-4-6", "hi"], {}, r"error: .*set ANTHROPIC_API_KEY\n.*rules.*`detent doctor`.*\n"),
        (["run", "-m", "openai:gpt-5", "hi"], {"ANTHROPIC_API_KEY": "k"}, r"error: .*set OPENAI_API_KEY\n.*\n"),
        (["run", "-m", "opnai:gpt-5", "hi"], {}, r"error: .*did you mean 'openai:gpt-5'.*\n"),
        (["run", "-m", "openai:gpt-5", "--planner", "on-device", "hi"], {}, r"error: .*choose your own server.*llamacpp:.*\n"),
        (["run", "-m", " ", "hi"], {}, r"error: --model is empty.*\n"),
        (["run", "-m", "x", "--base-url", "nowhere", "hi"], {}, r"error: base_url 'nowhere' is not a URL.*\n"),
        (["run", "-m", "x", "--base-url", "http://127.0.0.1:1/v1", "--tools", "nope", "hi"], {}, r"error: .*tool 'nope'.*\n"),
        (["run", "--agent", "ruled.toml", "--temperature", "1", "hi"], {}, r"error: .*plans by rules.*--model.*\n"),
    ],
)
def test_what_is_missing_is_said_in_two_lines(words: list[str], environment: dict[str, str], said: str, desk: Desk) -> None:
    """Exit code 2, what to do next, and nothing is left behind, not even an empty store."""
    desk.write("ruled.toml", RULES)
    done = desk.detent(*words, **{**NO_KEYS, **environment})
    assert (done.code, done.out) == (2, "")
    assert re.fullmatch(said, done.err), done.err
    assert not desk.store.parent.exists()


def test_a_planner_of_the_configuration_is_not_silently_passed_over(desk: Desk) -> None:
    """It plans for every agent, also after a resume; so `--model` beside it is refused."""
    desk.write("planning.py", "class Mine:\n    async def plan(self, view):\n        raise RuntimeError\n")
    desk.write("detent.toml", 'planner = "./planning.py:Mine"\n')
    done = desk.detent("run", "-m", "x", "--base-url", "http://127.0.0.1:1/v1", "hi", **NO_KEYS)
    assert done.code == 2 and "which plans for every agent" in done.err


def test_in_a_pipe_there_are_plain_lines_with_tokens_at_the_end(desk: Desk) -> None:
    """No control characters, one line a call, the answer alone on stdout; `-v` shows thinking and what was said beside calls."""
    script = [fails(503), says("On it.", ("c1", "note", {"text": "one"}), reasoning_content="I should note."), says("Done.")]
    with ChatServer(script) as server:
        done = desk.detent("run", "-m", "served", "--base-url", server.url, "--tools", "./tools.py:note", "note", **NO_KEYS)
    assert (done.code, done.out) == (0, "Done.\n")
    lines = done.err.splitlines()
    assert [re.sub(r"\d+ ms|\d+ s$|\d{8}-\S+", "N", line) for line in lines] == [
        "run N",
        lines[1],
        "   1  served: failed, try 2 of 5 in N",
        "   1  answered after a retry (server): model 'served': the provider failed (HTTP 503): no",
        "   1  note ok N  one",
        "completed (final_answer) · 2 iterations, 1 call · 3 model calls: 200 in (80 cached), 20 out · run N",
    ]
    assert lines[1].startswith("no price for model 'served'")
    assert "\x1b" not in done.err
    with ChatServer(script[1:]) as server:
        more = desk.detent("run", "-m", "served", "--base-url", server.url, "--tools", "./tools.py:note", "-v", "note", **NO_KEYS)
    assert "I should note." in more.err and "On it." in more.err


def test_what_a_server_makes_up_fills_no_screen(desk: Desk) -> None:
    """Not with the name of a tool that does not exist, nor with what libraries warn of."""
    usage = {"prompt_tokens": -5, "completion_tokens": -7, "total_tokens": -12}
    with ChatServer([says(None, ("c1", "n" * 5000, {}), usage=usage), says("Done.", usage=usage)]) as server:
        done = desk.detent("run", "-m", "served", "--base-url", server.url, "--tools", "./tools.py:note", "note", **NO_KEYS)
    assert (done.code, done.out) == (0, "Done.\n"), done.err
    assert "tool_not_found" in done.err and "Warning" not in done.err
    assert max(map(len, done.err.splitlines())) < 400


def on_a_terminal(desk: Desk, *words: str, when: dict[str, Callable[[], Any]]) -> str:
    """Run a command on a terminal of 100 columns and return all that was written to it; `when` a text is shown, something is done, once."""
    environment = {**desk.environment, **NO_KEYS, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
    environment.pop("NO_COLOR", None)
    left = dict(when)

    def does(shown: str) -> str:
        for text in [text for text in left if text in shown]:
            left.pop(text)()
        return ""

    sat = at_a_terminal(*words, types=does, env=environment, cwd=desk.home, rows=30, columns=100, forks=asking("openai"))
    assert sat.code == 0, sat.shown
    assert not left, f"{list(left)} never shown: {sat.shown}"
    return sat.shown


def test_on_a_terminal_thinking_is_dimmed_and_calls_show_from_their_start(desk: Desk) -> None:
    """Text streams before it is recorded and what stays is the answer, once; tokens are at the end. Nothing from a model steers the terminal."""
    first = says("Let me wait.", ("c1", "pause", {}), reasoning_content="First I pause.\x1b]0;evil\x07")
    asked = threading.Event()

    def answered(_: Any) -> Any:
        assert asked.wait(60)
        return first

    with ChatServer([answered, says("It went on.")]) as server:
        ask = ["run", "-m", "served", "--base-url", server.url, "--tools", "./tools.py:pause", "pause"]
        shown = on_a_terminal(desk, *ask, when={"asking served": asked.set, "| pause": lambda: desk.write("go", "")})
    assert "\x1b[2m      First I pause.\\u001b]0;evil\\u0007" in shown
    assert "Let me wait." in shown
    assert shown.index("pause ok") < shown.rindex("It went on.")
    final = shown.rsplit("\x1b[2K", 1)[-1]
    assert final.count("It went on.") == 1
    assert "2 model calls: 200 in (80 cached), 20 out" in final


def test_files_are_attached_and_the_model_that_takes_none_of_a_kind_is_named_at_once(desk: Desk) -> None:
    """A picture goes as one, a text as text; a recording that the model does not hear ends the command before a run begins."""
    desk.write("notes.md", "# The plan")
    (desk.home / "pixel.png").write_bytes(b"\x89PNG\x00\xff")
    (desk.home / "talk.wav").write_bytes(b"RIFF\x00\xff")
    with ChatServer([says("seen")]) as server:
        files = ["--attach", "notes.md", "--attach", "pixel.png"]
        done = desk.detent("run", "--model", "served", "--base-url", server.url, *files, "--json", "look", **NO_KEYS)
        assert (done.code, done.json["output"]) == (0, "seen"), done.err
        content = server.requests[0]["messages"][-1]["content"]
        assert "# The plan" in json.dumps(content) and [part["type"] for part in content if part["type"] != "text"] == ["image_url"]
        key = {"OPENAI_API_KEY": "k" * 20}
        refused = desk.detent("run", "--model", "openai:gpt-5", "--attach", "talk.wav", "look", **{**NO_KEYS, **key})
        assert refused.code == 2 and "does not accept audio" in refused.err and "nothing was recorded" in refused.err
        missing = desk.detent("run", "--model", "served", "--base-url", server.url, "--attach", "gone.png", "look", **NO_KEYS)
        assert missing.code == 2 and "gone.png" in missing.err and len(server.requests) == 1
