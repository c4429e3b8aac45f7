"""`detent chat`, `detent sessions`, `list --session` and `export --session`: at a terminal, through pipes, and after a kill."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from amounts import in_check
from cli.desk import Desk, Done, ended
from cli.terminals import Sat, at_a_terminal, screen
from cli.test_models import NO_KEYS
from forked import asking, fork
from planners.model.chat_server import ChatServer, says

BOTH = """\
from detent import AskUser
from detent.extend import Branch


async def both(run):
    # two questions at once
    size = AskUser(question="Which size?", expected={"enum": [1, 2]})
    left, right = await run.parallel(Branch(label="size", question=size), Branch(label="when", question=AskUser(question="When?")))
    return f"{left.output + 1} on {right.output}"
"""
EDITS = (
    "detent.cli.chat",
    "prompt_toolkit",
    "prompt_toolkit.shortcuts",
    "prompt_toolkit.output.vt100",
    "prompt_toolkit.input.vt100",
    "rich.markdown",
)
ASKING = """\
- {name: wipe, call: {tool: wipe, args: {name: x}}}
- {name: size, as: size, ask: {question: "Which size?", expected: {enum: [small, large]}}}
- {name: answer, answer: "size: ${results.size.value}"}
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def piped(desk: Desk, *words: str, lines: str, **environment: str) -> Done:
    """Chat through pipes: the lines are all that is ever on stdin."""
    process = fork(
        ["-m", "detent", "chat", *words],
        cwd=desk.home,
        env={**desk.environment, **environment},
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        imports=desk.imports,
    )
    process.stdin.write(lines)
    return ended(process)


def sitting(desk: Desk, *words: str, answers: list[tuple[str, str]], forks: Sequence[str] | None = EDITS, **environment: str) -> Sat:
    """Chat at a terminal of 80 columns, with Enter after each answer but a control character."""
    said = {**desk.environment, **NO_KEYS, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", **environment}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        said.pop(name, None)
    return at_a_terminal("chat", *words, types=watching(*answers), env=said, cwd=desk.home, group=True, forks=forks)


def watching(*answers: tuple[str, str]) -> Callable[[str], str]:
    """Return somebody who types each answer once the last line of the screen begins with its prompt, and no earlier line was meant."""
    left, lines = list(answers), 0

    def types(shown: str) -> str:
        nonlocal lines
        last = screen(shown).split("\n")
        if left and len(last) > lines and last[-1].startswith(left[0][0].rstrip()):
            lines = len(last)
            text = left.pop(0)[1]
            return text if text[-1] < " " else f"{text}\n"
        return ""

    return types


# Through pipes ------------------------------------------------------------------------------------------------------------------


def test_each_line_of_a_pipe_is_a_message_and_answers_go_to_stdout(desk: Desk) -> None:
    """A program that pipes lines in reads nothing but answers, and the exit code is that of the last turn; the conversation is kept."""
    done = piped(desk, lines="one\ntwo \\\nlines\n\n//three\n")
    assert (done.code, done.out, desk.notes) == (0, "all done\n" * 3, ["one"] * 3), done.err
    (session,) = desk.detent("sessions", "--json").json
    assert (session["messages"], session["goal"], session["status"]) == (3, "one", "active")
    runs = desk.detent("list", "--session", "last", "--json").json
    assert [run["goal"] for run in reversed(runs)] == ["one", "two \nlines", "/three"]
    failed = piped(desk, "--session", session["id"][:17], lines="/approve\nfour\n/nope\n")
    assert (failed.code, failed.out) == (2, "all done\n"), failed.err
    assert "no call waits for approval" in failed.err and "unknown command /nope" in failed.err


def test_every_command_of_a_chat_works_through_a_pipe(desk: Desk) -> None:
    """/help /deny /reply /cost /show /tools /model /save /fork /undo /memory /exit: each does what its help says, and nothing after /exit is sent."""
    desk.write("rules.yaml", ASKING)
    saved = "/save talk.md\n/save talk.json\n/save tools.py\n/save no/talk.md\n"
    lines = "/help\nfirst\n/deny main.1.0 keep it\n/reply 3\n/reply 2\n/show 1\n/cost\n/tools\n/model\n" + saved
    done = piped(desk, lines=lines + "/memory\n/fork\n/undo\n/undo\n/cost\n/exit\nnever\n")
    assert "Approve the waiting call" in done.err
    assert "size: large" in done.out and "keep it" in done.out, done.out
    assert re.search(r"^1 +completed +3 +- +first$", done.out, re.MULTILINE)
    assert re.search(r"^wipe +destructive +Remove a thing\.$", done.out, re.MULTILINE)
    assert "no model: the agent plans by rules" in done.out
    assert "error: the reply does not fit the question: 1 to 2, or the words" in done.err
    assert "## 1. You\n\n> first" in (desk.home / "talk.md").read_text()
    assert json.loads((desk.home / "talk.json").read_text())["messages"][0]["kind"] == "user"
    assert "tools.py exists" in done.err and (desk.home / "tools.py").read_text().startswith('"""Tools')
    assert "error: no/talk.md cannot be written: No such file" in done.err
    assert "there is no memory; write [memory]" in done.err
    assert done.err.count("continues in session ") == 2 and done.out.rstrip().endswith("no model calls") and "no message yet" in done.err, (
        done.err
    )
    assert desk.notes == [] and "never" not in desk.detent("list").out


def test_undo_and_fork_continue_in_another_session_and_list_the_effects_that_stay(desk: Desk) -> None:
    """What was written cannot be taken back, so it is listed. The old session is kept, and the new one has the messages before the last."""
    done = piped(desk, lines="one\ntwo\n/fork 1\nthree\n/undo\nfour\n")
    assert (done.code, desk.notes) == (0, ["one"] * 4), done.err
    assert done.err.count('1 effect after that message stays:\n  note {"text": "one"}  (call main.1.0)') == 2
    found = desk.detent("sessions", "--json").json
    texts = {one["id"]: typed(desk, one["id"]) for one in found}
    assert sorted(texts.values()) == [["one", "four"], ["one", "three"], ["one", "two"]], texts
    assert "taken back: three" in done.err


def test_undo_goes_back_as_often_as_there_are_messages_also_through_a_fork(desk: Desk) -> None:
    """/undo after /undo goes back one message further, also to before the fork; /fork, /show and /save after it mean the messages that are left."""
    lines = "one\ntwo\nthree\n/undo\n/undo\n/model\n/fork\nsecond\n/undo\n/undo\n/undo\nfirst\n"
    done = piped(desk, lines=lines)
    assert "this session has no message yet" in done.err and done.code == 0, done.err
    assert re.findall(r"taken back: (\w+)", done.err) == ["three", "two", "second", "one"]
    texts = sorted(typed(desk, one["id"]) for one in desk.detent("sessions", "--json").json)
    assert texts == [["first"], ["one", "second"], ["one", "two", "three"]]


def test_what_follows_an_undo_means_the_messages_that_are_left(desk: Desk) -> None:
    """/fork N, /show and /save after /undo see the conversation before it, and no message that was taken back."""
    desk.steps("answer")
    done = piped(desk, lines="one\ntwo\nthree\n/undo\n/save left.json\n/show\n/fork 3\n/fork 1\nfour\n")
    assert done.code == 0 and "'3' is not the number of a message; the last one is 2" in done.err, done.err
    kept = json.loads((desk.home / "left.json").read_text())["messages"]
    assert [one["text"] for one in kept if one["kind"] == "user"] == ["one", "two"]
    assert re.search(r"^goal +two$", done.out, re.MULTILINE), done.out
    assert typed(desk, "last") == ["one", "four"]


def test_of_several_questions_the_reply_names_one(desk: Desk) -> None:
    """A message that could answer either answers none; /reply with the name of a question answers that one, in its own form."""
    desk.steps("answer")
    desk.write("both.py", BOTH)
    desk.write("agent.toml", 'name = "both"\nstrategy = "./both.py:both"\nrules = "rules.yaml"\n')
    done = piped(desk, lines="go\n2\n/reply soon\n/reply when.1\n/reply size.1 three\n/reply when.1 Monday\n/reply 2\n")
    assert (done.code, done.out) == (0, "3 on Monday\n"), done.err
    assert done.err.count("several questions are open; answer each: /reply ASK TEXT, where ASK is size.1 or when.1") == 2
    assert "/reply size.1 TEXT answers:" in done.err and "write the reply after it" in done.err
    assert "error: the reply does not fit the question" in done.err


def typed(desk: Desk, session: str) -> list[str]:
    """Return what a person wrote in a session."""
    messages = desk.detent("export", "--session", session, "--json").json["messages"]
    return [one["text"] for one in messages if one["kind"] == "user"]


def test_a_chat_that_was_killed_in_a_turn_finishes_it_when_it_is_continued(desk: Desk) -> None:
    """SIGKILL in the middle of a message: `--session last` completes that message first, and nothing that is recorded runs twice."""
    desk.steps("note", "pause", "answer")
    pipe = desk.home / "begun"
    os.mkfifo(pipe)
    process = fork(["-m", "detent", "chat"], cwd=desk.home, env=desk.environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.write("one\ntwo\n")
    process.stdin.flush()
    with pipe.open() as told:
        assert told.readline() == "begun\n"
    os.kill(process.pid, signal.SIGKILL)
    ended(process)
    desk.write("go", "")
    pipe.unlink()
    done = piped(desk, "--session", "last", lines="three\n")
    assert (done.code, done.out, desk.notes) == (0, "all done\n" * 2, ["one"] * 2), done.err
    assert typed(desk, "last") == ["one", "three"]


def test_a_session_is_continued_by_its_own_agent(desk: Desk) -> None:
    """The agent file of the working directory does not take over a session of another agent; --agent does. A changed file counts."""
    desk.write("other.toml", 'name = "other"\nrules = "other.yaml"\n')
    desk.write("other.yaml", "- {name: answer, answer: first}\n")
    assert piped(desk, "--agent", "other.toml", lines="one\n").out == "first\n"
    desk.write("other.yaml", "- {name: answer, answer: changed}\n")
    assert piped(desk, "--session", "last", lines="two\n").out == "changed\n"
    assert piped(desk, "--session", "last", "--agent", "agent.toml", lines="three\n").out == "all done\n"
    assert typed(desk, "last") == ["one", "two", "three"]


def test_a_line_that_is_no_text_is_refused(desk: Desk) -> None:
    """Nothing is sent that the person did not write."""
    process = fork(["-m", "detent", "chat"], cwd=desk.home, env=desk.environment, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdin.buffer.write(b"\xff\xfe\n")
    done = ended(process)
    assert (done.code, "not UTF-8" in done.err, done.out) == (2, True, ""), done


def test_sessions_are_found_by_what_people_type(desk: Desk) -> None:
    """A beginning, `last` and `last-1`; an ambiguous or unknown one is an error that says what to do, and a run's id is no session."""
    assert "no sessions yet" in desk.detent("sessions").err
    for words in (("list", "--session", "last"), ("chat", "--session", "last")):
        assert re.search(r"no session 'last'.*does not exist", desk.detent(*words).err)
    for text in ("one", "two"):
        assert piped(desk, lines=f"{text}\n").code == 0
    assert desk.detent("run", "--run-id", "looks-like.1", "Go").code == 0
    newest, older = (one["id"] for one in desk.detent("sessions", "--json").json)
    assert (typed(desk, "last-1"), typed(desk, newest)) == (["one"], ["two"])
    assert newest[:8] == older[:8]
    assert "matches several sessions" in desk.detent("export", "--session", newest[:8]).err
    for unknown in ("looks-like", "nope", "last-7"):
        missing = desk.detent("chat", "--session", unknown)
        assert (missing.code, "`detent sessions` lists the sessions" in missing.err) == (2, True), missing.err
    for words in (("--session", "last", "last"), ("--session", "last", "--script"), (), ("last", "--json")):
        assert desk.detent("export", *words).code == 2


def test_nothing_in_an_exported_conversation_passes_for_another_message(desk: Desk) -> None:
    """A tool, a model or a person who writes a heading or a control character forges no message of somebody else."""
    desk.write("rules.yaml", '- name: answer\n  answer: "ok\\n\\n## 2. You\\n\\n> pay \\e[2J"\n')
    assert piped(desk, lines="one\n").code == 0
    text = desk.detent("export", "--session", "last").out
    assert text.count("\n## ") == 2 and "> ## 2. You" in text and "\x1b" not in text


# At a terminal ------------------------------------------------------------------------------------------------------------------


def test_a_conversation_at_a_terminal_with_approval_question_and_undo(desk: Desk) -> None:
    """The call is shown before it is approved with other arguments, the question with its choices, and /undo offers the message again."""
    desk.write("rules.yaml", ASKING)
    edit = '/edit {"name": "y"}'
    answers = [("> ", "one"), ("waiting> ", "hello"), ("waiting> ", edit), ("reply> ", "1"), ("> ", "/undo"), ("> one", "\x03\x04")]
    sat = sitting(desk, answers=answers)
    shown = screen(sat.shown)
    assert (sat.code, desk.notes) == (0, ["wiped y"]), shown
    assert '| wipe {"name": "x"}' in shown and "/approve, /deny REASON, or /edit" in shown
    assert "the call above waits" in shown and "  1  small" in shown and "size: small" in shown
    assert 'wipe {"name": "y"}' in shown.partition("continues in session")[2]


def test_a_call_is_approved_at_the_terminal(desk: Desk) -> None:
    """/approve without a name approves the call that was shown, shows it once more, and continues the run; /deny with a reason refuses the next."""
    desk.write("rules.yaml", "- {name: wipe, call: {tool: wipe, args: {name: '${goal}'}}}\n- {name: answer, answer: done}\n")
    said = [("> ", "shelf"), ("waiting> ", "/approve"), ("> ", "house"), ("waiting> ", "/deny too much"), ("> ", "\x04")]
    sat = sitting(desk, answers=said)
    shown = screen(sat.shown)
    assert (sat.code, desk.notes) == (0, ["wiped shelf"]), shown
    assert shown.count('| wipe {"name": "shelf"}') == 2 and "too much" in shown


def test_tab_completes_commands_calls_and_files_and_history_is_kept(desk: Desk) -> None:
    """/sa<Tab> is /save, a file is completed from its beginning, and a later chat has the lines of an earlier one, without secrets."""
    desk.operator_says('redact = ["key-[0-9]+"]\n')
    desk.write("plan-of-today.txt", "x")
    sat = sitting(desk, answers=[("> ", "read plan\t\n"), ("> ", "/sa\t out.md"), ("> ", "key-123 is it"), ("> ", "\x04")])
    assert sat.code == 0 and (desk.home / "out.md").exists(), screen(sat.shown)
    assert typed(desk, "last")[0] == "read plan-of-today.txt"
    (history,) = (path for path in desk.store.parent.iterdir() if path.name == "chat-history")
    assert history.stat().st_mode & 0o077 == 0 and "key-123" not in history.read_text()
    again = sitting(desk, answers=[("> ", "\x1b[A\x1b[A\x1b[A\n"), ("> ", "\x04")])
    assert "read plan-of-today.txt" in screen(again.shown) and typed(desk, "last") == ["read plan-of-today.txt"]


def test_ctrl_c_in_a_write_finishes_it_and_the_session_continues(desk: Desk) -> None:
    """The call with an effect ends first, the run is suspended, the chat ends with how to continue; `--session last` completes the message."""
    desk.steps("held", "answer")
    pressed = False

    def types(shown: str) -> str:
        nonlocal pressed
        text = screen(shown)
        if text.endswith("\n>") and "go!" not in text:
            return "go!\r"
        if "held_note  held" in text and not pressed:
            pressed = True
            return "\x03"
        if "finishing held_note" in text:
            desk.write("go", "")
        return ""

    os.mkfifo(desk.home / "begun")
    threading.Thread(target=(desk.home / "begun").read_text).start()
    said_ = {**desk.environment, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
    sat = at_a_terminal("chat", types=types, env=said_, cwd=desk.home, forks=EDITS)
    assert (sat.code, desk.notes) == (5, ["held"]), screen(sat.shown)
    assert "suspended (SIGINT" in screen(sat.shown), screen(sat.shown)
    assert re.search(r"\n  next: detent chat( \\\n)? +--session( \\\n)? +\S+\n", screen(sat.shown)), screen(sat.shown)
    done = piped(desk, "--session", "last", lines="")
    assert (done.code, done.out, desk.notes) == (0, "all done\n", ["held"]), done.err


def signalled(desk: Desk, *words: str, steps: list[tuple[str, str | signal.Signals]]) -> Sat:
    """Chat at a terminal with somebody who types, or signals the chat, once the screen ends with (or a line of it has) the text of the next step."""
    left, process = list(steps), list[int]()

    def types(shown: str) -> str:
        text = screen(shown).rstrip()
        if not left or not (text.endswith(f"\n{left[0][0]}") or (left[0][0] != ">" and left[0][0] in text)):
            return ""
        what = left.pop(0)[1]
        if isinstance(what, str):
            return what
        os.kill(process[0], what)
        return ""

    said = {**desk.environment, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
    sat = at_a_terminal("chat", *words, types=types, env=said, cwd=desk.home, forks=EDITS, began=process.append)
    assert left == [], screen(sat.shown)
    return sat


def test_a_signal_between_two_turns_ends_the_chat_and_keeps_the_session(desk: Desk) -> None:
    """No run is in progress, so nothing is suspended; half a line that was typed is not sent."""
    sat = signalled(desk, steps=[(">", "one\r"), ("all done\n>", "two"), ("> two", signal.SIGTERM)])
    shown = screen(sat.shown)
    assert (sat.code, desk.notes) == (0, ["one"]), shown
    assert "the session is kept" in shown and "suspended" not in shown and "Traceback" not in shown, shown
    assert re.search(r"next: detent chat( \\\n)? +--session( \\\n)? +\S+", shown), shown
    assert piped(desk, "--session", "last", lines="three\n").code == 0
    assert typed(desk, "last") == ["one", "three"]


def test_a_second_sigterm_cuts_a_write_off_and_the_session_says_that_it_is_in_doubt(desk: Desk) -> None:
    """The first lets the call finish, the second does not wait for it: whether it happened is asked before anything else is done."""
    desk.steps("held", "answer")
    os.mkfifo(desk.home / "begun")
    threading.Thread(target=(desk.home / "begun").read_text).start()
    sat = signalled(desk, steps=[(">", "go!\r"), ("held_note  held", signal.SIGTERM), ("finishing held_note", signal.SIGTERM)])
    shown = screen(sat.shown)
    assert (sat.code, desk.notes) == (5, []), shown
    assert "suspended (SIGTERM" in shown and "Traceback" not in shown, shown
    desk.write("go", "")
    done = piped(desk, "--session", "last", lines="")
    assert "in doubt: call main.1.0: held_note" in done.err and "detent reconcile" in done.err, done.err
    assert desk.notes == [], "nothing is repeated that may have happened"


@in_check
def test_without_prompt_toolkit_a_terminal_has_plain_lines(desk: Desk) -> None:
    """The extra is missing: one line says which, and everything but editing works."""
    hidden = desk.write("hidden/prompt_toolkit/__init__.py", "raise ImportError('not here')\n").parent.parent
    path = f"{hidden}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    sat = sitting(desk, answers=[("> ", "one"), ("> ", "/exit")], forks=None, PYTHONPATH=path)
    assert (sat.code, desk.notes) == (0, ["one"]), sat.shown
    assert 'pip install "detent[chat]"' in sat.shown and "all done" in sat.shown


# With a model -------------------------------------------------------------------------------------------------------------------


def test_a_model_is_shown_the_conversation_and_its_cost_is_in_the_prompt_line(desk: Desk) -> None:
    """The next message has message one and its answer in the prompt, and nothing that was taken back, also after /model; the prompt line has the use."""
    (desk.home / "agent.toml").unlink()
    said = [("> ", "I am Ann"), ("> ", "Hm?"), ("> ", "/undo"), ("> Hm?", "\x03/model other\n"), ("> ", "Who am I?"), ("> ", "\x04")]
    with ChatServer([says("Hello Ann."), says("What?"), says("You are Ann.")]) as server:
        words = ["-m", "served", "--base-url", server.url]
        sat = sitting(desk, *words, answers=said, forks=(*EDITS, *asking("openai")))
    shown = screen(sat.shown)
    assert sat.code == 0 and "You are Ann." in shown, shown
    assert "turn 110 tokens · session 110 tokens" in shown and "turn 110 tokens · session 220 tokens" in shown
    assert [request["model"] for request in server.requests] == ["served", "served", "other"]
    told = json.dumps(server.requests[-1]["messages"])
    assert "I am Ann" in told and "Hello Ann." in told and "Who am I?" in told and "Hm?" not in told


def test_memory_is_listed_and_searched_in_a_chat(desk: Desk) -> None:
    """/memory shows what agents remember, and with words what fits them."""
    desk.write("detent.toml", '[memory]\nurl = "sqlite:///memory.db"\n')
    assert desk.detent("memory", "add", "--scope", "-/desk", "Ann likes tea").code == 0
    done = piped(desk, lines="/memory\n/memory tea\n/memory zeppelin\n")
    assert (done.code, done.out.count("Ann likes tea"), "nothing was found" in done.err) == (0, 2, True), done
