"""`detent pause` stops an agent, a tenant, a tool or a provider for everybody, says by whom and why, and `detent resume` ends that."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.desk import Desk


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_paused_agent_is_listed_and_refused_until_it_is_resumed(desk: Desk) -> None:
    """Each command says what it did and what comes next; `--json` is one document."""
    assert "nothing is paused" in desk.detent("pause").err + desk.detent("pause").out
    desk.steps("ask", "answer")
    desk.detent("run", "Water the plants", "--run-id", "r")
    paused = desk.detent("pause", "agent:tester", "--by", "ann", "--why", "odd")
    said = "agent 'tester' is paused by ann (odd) since "
    assert paused.code == 0 and said in paused.out + paused.err and "resume agent:tester" in paused.out + paused.err
    for words in (("pause",), ("list",)):
        shown = desk.detent(*words)
        assert said in shown.out + shown.err
    (hold,) = desk.detent("pause", "--json").json
    assert (hold["of"], hold["name"], hold["by"], hold["why"]) == ("agent", "tester", "ann", "odd")
    refused = desk.detent("reply", "r", "the fern")
    assert refused.code == 5 and "paused by ann (odd)" in refused.out + refused.err
    ended = desk.detent("resume", "agent:tester", "--by", "bob", "--why", "mended")
    assert ended.code == 0 and "ended by bob (mended)" in ended.out + ended.err
    assert "ended by bob (mended)" in (listed := desk.detent("pause", "--ended")).out + listed.err
    assert "nothing is paused" in (listed := desk.detent("pause")).out + listed.err
    assert "was not paused" in (again := desk.detent("resume", "agent:tester")).out + again.err
    assert desk.detent("resume", "r").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pause", "tester"), "write agent:NAME, tenant:NAME, tool:NAME or provider:NAME"),
        (("pause", "agent:a", "--ended"), "--ended lists"),
        (("resume", "agent:a", "--budget", "max_iterations=3"), "agent:a is not a run"),
        (("resume", "r", "--why", "so"), "--why is for ending a pause"),
    ],
)
def test_a_mistake_says_what_is_right(desk: Desk, words: tuple[str, ...], said: str) -> None:
    """Exit 2."""
    desk.detent("run", "Water the plants")
    done = desk.detent(*words)
    assert done.code == 2 and said in done.err
