"""What is streamed is redacted as what is recorded: a secret that comes in pieces is not shown, in no observer and at no moment."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amounts import in_check
from detent import Agent, ToolCall, View, tool
from detent.core.errors import MalformedPlan
from detent.ports import Chunk, ModelAnswer, ToolContext
from detent.secrecy.redact import HIDDEN, Streamed, StreamedFields
from detent.stores.ram import RamStore
from detent.testing.scripted import ScriptedPlanner
from kernel.runs import call
from metering.providers import END, Planning, answer, engine

CARD = "4111-1111-1111-1111"
CARDS = r"\d{4}-\d{4}-\d{4}-\d{4}"
PATTERNS = [CARDS, r"key=[a-z]{3,9}", r"\bab{1,5}c?\b", r"xy{1,4}z", r"(?m:^q{2,4}$)"]


@given(
    st.lists(st.text(alphabet="41-1key=abcxyzq \n", max_size=30), max_size=12).map("".join)
    | st.lists(st.sampled_from([CARD, "key=", "hunter", "abbbc", "xyyz", "\nqqq\n", " ", "4111-"]), max_size=12).map("".join),
    st.lists(st.integers(0, 200), max_size=12),
    st.sampled_from(PATTERNS),
)
def test_any_cut_into_pieces_shows_what_the_whole_would(text: str, cuts: list[int], pattern: str) -> None:
    """The pieces that are shown add up to the text with each match replaced."""
    streamed, shown, at = Streamed([pattern]), [], 0
    for cut in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        shown.append(streamed.add(text[at:cut]))
        at = cut
    shown.append(streamed.rest())
    assert "".join(shown) == re.sub(pattern, HIDDEN, text)
    assert streamed.rest() == "" and streamed.add("") == ""


@pytest.mark.parametrize(
    ("pattern", "text", "shown"),
    [
        (CARDS, f"a {CARD} and {CARD}", "a <secret> and <secret>"),
        (PATTERNS[1], "key=hunter key=ab yek=hunter", "<secret> key=ab yek=hunter"),
        (PATTERNS[2], "abbbbb abc cab abb", "<secret> <secret> cab <secret>"),
        (PATTERNS[3], "xyyyyz, xyyyyy, xyz", "<secret>, xyyyyy, <secret>"),
        (PATTERNS[4], "qq\nqqqqq\nqqqq\n q", "<secret>\nqqqqq\n<secret>\n q"),
        (r"\d{0,4}", "ab 1234 c", "ab <secret> c"),
    ],
)
def test_what_stands_around_a_match_is_waited_for_in_pieces_of_every_size(pattern: str, text: str, shown: str) -> None:
    """What a pattern looks at before and behind itself decides; a match of nothing hides nothing."""
    for size in range(1, len(text) + 1):
        streamed = Streamed([pattern])
        assert "".join(streamed.add(text[at : at + size]) for at in range(0, len(text), size)) + streamed.rest() == shown, size


def test_the_next_text_begins_anew() -> None:
    """What was said before is nothing that a match in it could rest on."""
    streamed = Streamed([PATTERNS[1]])
    assert [streamed.add(text) + streamed.rest() for text in ("key=", "hunter", "key=hunter")] == ["key=", "hunter", "<secret>"]


@given(st.text(alphabet="sk-a1 \n", max_size=60), st.lists(st.integers(0, 60), max_size=8))
def test_a_match_without_a_bound_holds_all_back_until_the_text_ends(text: str, cuts: list[int]) -> None:
    """Nothing is shown before, and then the text with each match replaced."""
    pattern, at = r"sk-[a-z0-9]+", 0
    streamed = Streamed([pattern])
    for cut in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        assert streamed.add(text[at:cut]) == ""
        at = cut
    assert streamed.rest() == re.sub(pattern, HIDDEN, text)


def test_several_patterns_hide_what_any_of_them_matches_and_leave_placeholders_of_the_log() -> None:
    """Matches that overlap are one."""
    streamed = Streamed([CARDS, r"1111 end", r"[0-9a-f]{24}", r"<secret:[0-9a-f]{24}>"])
    known = f"<secret:{'0a' * 12}>"
    assert streamed.add(f"{CARD} end {known}.") + streamed.rest() == f"{HIDDEN} {known}."


def test_text_goes_on_while_patterns_are_bounded() -> None:
    """No more is held back than a match can have, and what a match may depend on."""
    streamed = Streamed([CARDS])
    shown = "".join(streamed.add(f"word {n} ") for n in range(100))
    whole = "".join(f"word {n} " for n in range(100))
    assert whole.startswith(shown) and len(whole) - len(shown) == len(CARD) + 1


FIELDS = ("password", "pass", "pin")
_leaves = st.none() | st.booleans() | st.integers() | st.floats(-9, 9) | st.text(alphabet='ab"\\{}[],: \npassword', max_size=12)
_keys = st.sampled_from(["password", "pin", "pass", "passwords", "user", "args", 'a"b'])
_documents = st.recursive(_leaves, lambda c: st.lists(c, max_size=4) | st.dictionaries(_keys, c, max_size=4), max_leaves=12)


def without_fields(value: Any) -> Any:
    """Return JSON data with the fields replaced whole."""
    if isinstance(value, dict):
        return {key: HIDDEN if key in FIELDS else without_fields(part) for key, part in value.items()}
    return [without_fields(part) for part in value] if isinstance(value, list) else value


@given(_documents, st.lists(st.integers(0, 200), max_size=10), st.integers(0, 2), st.sampled_from([None, 2]))
def test_a_field_of_streamed_json_is_hidden_however_it_is_cut(document: Any, cuts: list[int], nested: int, indent: int | None) -> None:
    """What is shown is the same JSON with the field's value, of whatever kind, replaced; also in JSON that is a text of JSON."""
    text = json.dumps(document, indent=indent)
    for _ in range(nested):
        text = json.dumps({"arguments": text})
    streamed, shown, at = StreamedFields(FIELDS), "", 0
    for cut in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        shown += streamed.add(text[at:cut])
        at = cut
    shown += streamed.rest()
    for _ in range(nested):
        shown = json.loads(shown)["arguments"]
    assert json.loads(shown) == without_fields(document)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("{'pass': 'it\\'s, s3cret', 'passport': 'mine'}", "{'pass':\"<secret>\", 'passport': 'mine'}"),
        ('{user: "it\'s me", pass : ["s3cret", {}]}', '{user: "it\'s me", pass :"<secret>"}'),
        ("Say, pass please: don't", "Say, pass please: don't"),
        (
            '{\u201cpass\u201d: \u201cs3"cret\u201d, \u201cpassport\u201d: \u201cmine\u201d}',
            '{\u201cpass\u201d:"<secret>", \u201cpassport\u201d: \u201cmine\u201d}',
        ),
        ("{\u2018pass\u2019: \u2019s3cret\u2019, \u2018n\u2019: 1}", '{\u2018pass\u2019:"<secret>", \u2018n\u2019: 1}'),
        ("log_in(pass='s3, cret', user='ann')", "log_in(pass=\"<secret>\", user='ann')"),
        ("log_in(user=ann, pass = s3cret) now", 'log_in(user=ann, pass ="<secret>") now'),
        ('if (pass == "s3cret") it(pass=f("s3", cret)), on', 'if (pass ="<secret>") it(pass="<secret>"), on'),
        ("go(pass='s3''cr'\"et\"+'!', n=1) and (pass=f'{s['3']}cret').", 'go(pass="<secret>", n=1) and (pass="<secret>").'),
        ('go(pass="s3" \'cret\'\n  f"""s3"cret""" + rb"s3" + cret(), n="on") now', 'go(pass="<secret>", n="on") now'),
        (
            'go(pass="s3cret"\n , n="on") (pass="s3cret" for now) (pass=\'s3cret\' f or)',
            'go(pass="<secret>"\n, n="on") (pass="<secret>" for now) (pass="<secret>" f or)',
        ),
        ("it takes (user, pass) and (pass by)", "it takes (user, pass) and (pass by)"),
        ("{'pass': ['s3], cret'], 'n': 1}", "{'pass':\"<secret>\", 'n': 1}"),
        ("{pass: it's, n: 1}", '{pass:"<secret>", n: 1}'),
        ("{pass: s3(c)re)t, n: 1}", '{pass:"<secret>", n: 1}'),
        ("{pass: s3[c]ret, n: 1}", '{pass:"<secret>", n: 1}'),
    ],
)
def test_json_with_other_quotes_or_none_and_keywords_of_a_call_are_hidden_too(said: str, shown: str) -> None:
    """Models write them, and calls are read from such JSON; however it is cut, and prose stays."""
    for size in range(1, len(said) + 1):
        streamed = StreamedFields(["pass"])
        assert "".join(streamed.add(said[at : at + size]) for at in range(0, len(said), size)) + streamed.rest() == shown


@given(
    st.sampled_from(["", "f", "r", "b", "Rb", "fR", "u"]),
    st.sampled_from(["'", '"', "'''", '"""']),
    st.text(alphabet="s3,(){}[]= '\"\n\u201c", max_size=12),
    st.sampled_from(["pass=", ", 'pass': "]),
    st.lists(st.integers(0, 60), max_size=6),
)
def test_a_text_of_python_is_hidden_whole_whatever_stands_before_its_quotes(
    prefix: str, quote: str, secret: str, name: str, cuts: list[int]
) -> None:
    """With a prefix, in three quotes, with other quotes or brackets within; what comes after it is shown."""
    assume(quote not in secret and secret[-1:] != quote[0])
    text, streamed, shown, at = f"(n=1, {name}{prefix}{quote}{secret}{quote}, on='it')", StreamedFields(["pass"]), "", 0
    for cut in [*sorted(cut for cut in cuts if cut < len(text)), len(text)]:
        shown += streamed.add(text[at:cut])
        at = cut
    assert shown + streamed.rest() == f"(n=1, {name.rstrip()}\"<secret>\", on='it')"


@pytest.mark.parametrize(
    "said", ["{" + " " * 2_000, "say \\" + "\\" * 2_000, '{"n": 1,' + "\n" * 2_000], ids=["spaces", "backslashes", "lines"]
)
def test_a_model_that_writes_one_character_without_end_is_shown(said: str) -> None:
    """It does not become a name by that: else every piece would look through all that is held, and nothing would be seen."""
    streamed = StreamedFields(FIELDS)
    shown = "".join([streamed.add(said[at : at + 50]) for at in range(0, len(said), 50)])
    assert len(shown) > 1_500 and shown + streamed.rest() == said


@in_check
@pytest.mark.parametrize("said", ['"' * 300_000, '{"pass": "s3cret"} ' * 50_000], ids=["quotes", "fields"])
def test_a_long_text_that_comes_in_one_piece_is_looked_through_once(said: str) -> None:
    """Twice as long a text takes about twice as long; four times where each quote or field copies the rest of the text."""
    took = []
    for text in (said[: len(said) // 4], said):
        began = time.process_time()
        StreamedFields(["pass"]).add(text)
        took.append(time.process_time() - began)
    assert took[1] < took[0] * 8


def test_only_what_may_become_a_field_is_held_back() -> None:
    """Other text goes on as it comes; a value that never ends is never shown, and the next text begins anew."""
    streamed = StreamedFields(FIELDS)
    assert [streamed.add(piece) for piece in ('say "pa', 'ge", "pass', 'word"', " no", ': "pin"', ' : "12')] == [
        "say ",
        '"page", ',
        '"password"',
        " no",
        ': "pin"',
        f' :"{HIDDEN}"',
    ]
    assert streamed.add("34, {never ends") == "" and streamed.rest() == ""
    assert streamed.add('"user": "x", "p') == '"user": "x", ' and streamed.rest() == '"p'


class Watching:
    """An observer that keeps the chunks."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []

    def on_record(self, record: Any, state: Any) -> None:
        """Records are redacted elsewhere."""

    def on_chunk(self, chunk: Chunk) -> None:
        """Keep it."""
        self.chunks.append(chunk)


PIECES = ["my card is 41", "11-1111-", "1111-1", "111, right? And a lot more to say about it."]


@pytest.mark.parametrize("where", ["agent", "engine"])
def test_a_secret_that_a_model_says_in_pieces_is_not_streamed(where: str) -> None:
    """In its text and in its thinking, whose order stays; what is held back comes with the end of the call."""

    async def main() -> None:
        watching = Watching()

        async def plan(view: View) -> Any:
            models = view.models
            assert models is not None

            async def send(limit: int | None) -> ModelAnswer:
                for kind in ("thinking", "text"):
                    for piece in PIECES:
                        models.emit(kind, piece)
                return answer()

            await models.call("fake:one", send)
            assert watching.chunks[-1].content.endswith("say about it.")
            models.emit("text", "tail 4111-1111-")
            models.emit("text", "1111-1111")
            return END

        options: dict[str, Any] = {"redact": [CARDS]} if where == "engine" else {}
        agent = Agent(name="a", redact=[CARDS] if where == "agent" else [])
        async with engine(Planning(plan), **options) as made:
            await made.run(agent, "go", observers=[watching])
        told = [(chunk.kind, chunk.content) for chunk in watching.chunks if chunk.kind in ("text", "thinking")]
        said = {kind: "".join(content for one, content in told if one == kind) for kind in ("thinking", "text")}
        whole = f"my card is {HIDDEN}, right? And a lot more to say about it."
        assert said == {"thinking": whole, "text": f"{whole}tail {HIDDEN}"}
        assert [kind for kind, _ in told] == sorted((kind for kind, _ in told), reverse=True), "thinking came before text"
        assert len(told) > 3, "it was not held back until the end"
        assert "4111" not in str(watching.chunks)

    asyncio.run(main())


def test_a_sensitive_field_of_a_call_that_a_model_writes_as_text_is_neither_streamed_nor_kept_with_an_answer_that_is_no_plan() -> None:
    """Models without native calls write them as JSON: a declared field in it is hidden, in pieces or cut off; the tool gets it."""
    got: list[str] = []

    @tool(side_effect="write", sensitive=("password",))
    async def login(user: str, password: str) -> str:
        """Log in."""
        got.append(password)
        return "in"

    async def main() -> None:
        watching, store = Watching(), RamStore()
        said = '{"tool": "login", "args": {"user": "ann", "password": "hun\\"ter2"}}'

        async def plan(view: View) -> Any:
            models = view.models
            assert models is not None
            if view.results:
                return END

            async def send(limit: int | None) -> ModelAnswer:
                for at in range(0, len(said), 5):
                    models.emit("text", said[at : at + 5])
                return answer()

            await models.call("fake:one", send)
            if view.attempt == 1:
                raise MalformedPlan("cut off", raw=said[:-4])
            return ToolCall(tool="login", args=json.loads(said)["args"])

        async with engine(Planning(plan), login, store=store) as made:
            result = await made.run(Agent(name="a", tools=["login"]), "go", observers=[watching])
            assert (await made.replay(result.run_id)).identical
        told = "".join(chunk.content for chunk in watching.chunks if chunk.kind == "text")
        assert told == said.replace(' "hun\\"ter2"', f'"{HIDDEN}"') * 2
        assert got == ['hun"ter2']
        log = b"\n".join(await store.read(result.run_id)).decode()
        assert "ter2" not in log and f'\\"password\\":\\"{HIDDEN}' in log

    asyncio.run(main())


def test_the_progress_of_a_tool_is_redacted() -> None:
    """Each text in it, at any depth."""

    @tool(side_effect="read")
    async def pay(context: ToolContext) -> str:
        """Pay."""
        context.progress({"doing": [f"charging {CARD}", 3]})
        return "paid"

    async def main() -> None:
        watching = Watching()
        async with engine(ScriptedPlanner([call("pay"), END]), pay, redact=[CARDS]) as made:
            await made.run(Agent(name="a", tools=["pay"]), "go", observers=[watching])
        (told,) = [chunk.content for chunk in watching.chunks if chunk.kind == "progress"]
        assert told == {"doing": [f"charging {HIDDEN}", 3]}

    asyncio.run(main())
