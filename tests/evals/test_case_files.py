"""Cases from files and data sets of others: what is read, and that whatever cannot be read says which file, which row, why, and what next."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Engine
from detent.core.errors import ConfigError
from detent.evals import Case, Suite, cases_of, evaluate, load_suite
from detent.evals.case_files import MOST_BYTES
from detent.evals.suites import load_cases

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGED = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [{', '.join([f'*{a}'] * 12)}]}}\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
ATTACKS: dict[str, tuple[str, str | bytes, str]] = {
    "a key twice in JSON": ("c.json", '[{"goal": "x", "goal": "y"}]', r"c\.json: not JSON: 'goal' is given twice"),
    "a key twice in a line": ("c.jsonl", '{"goal": "x"}\n{"goal": "x", "id": 1, "id": 2}', r"c\.jsonl, line 2: not JSON: 'id' is given twice"),
    "a key twice in YAML": ("c.yaml", "- goal: x\n  id: a\n  goal: y\n", r"c\.yaml, line 3: 'goal' is given twice"),
    "a column twice": ("c.csv", "goal,id,goal\nx,1,y\n", r"c\.csv, line 1: the head has two columns 'goal'"),
    "a column without a name": ("c.csv", "goal,\nx,1\n", r"line 1: the head has a column without a name"),
    "a cell too many": ("c.csv", "id,goal\n1,pay, then go\n", r"c\.csv, line 2: 3 cells, and the head has 2.*quotes"),
    "an open quote": ("c.csv", 'id,goal\n1,"pay\n', r"c\.csv, line \d: not CSV: unexpected end"),
    "a huge cell": ("c.csv", "id,goal\n1," + "x" * 200_000 + "\n", r"c\.csv, line 2: not CSV: field larger"),
    "a cell that is no JSON": ("c.csv", "goal,files\nx,{\n", r"case 1, column files: not JSON"),
    "NaN in JSON": ("c.json", '[{"goal": "x", "expected": NaN}]', r"NaN is not a JSON number"),
    "a huge number": ("c.json", '[{"goal": "x", "expected": 1e999}]', r"too large"),
    "a number of 5,000 digits": ("c.json", '[{"goal": "x", "expected": ' + "9" * 5000 + "}]", r"c\.json: not JSON"),
    "NaN in YAML": ("c.yaml", "- {goal: y}\n- {goal: x, expected: .nan}\n", r"c\.yaml: case 2: expected is nan"),
    "infinity in TOML": ("c.toml", '[[cases]]\ngoal = "x"\nexpected = inf\n', r"c\.toml: case 1: expected is inf"),
    "half a character": ("c.json", '[{"goal": "\\ud800"}]', r"case 1: goal holds half a surrogate"),
    "deep JSON": ("c.json", "[" * 100_000 + "]" * 100_000, r"c\.json: it nests deeper than"),
    "deep lines": ("c.jsonl", '{"goal": "x"}\n' + "[" * 5000, r"c\.jsonl: it nests deeper than"),
    "deep YAML": ("c.yaml", "[" * 100_000, r"c\.yaml, line 1: not YAML"),
    "YAML that is too deep for a log": ("c.yaml", "- goal: x\n  expected: " + "[" * 300 + "]" * 300, r"case 1: it is nested too deeply"),
    "deep TOML": ("c.toml", "cases = " + "[" * 20_000, r"c\.toml: (it nests|not TOML)"),
    "a bomb of aliases": ("c.yaml", BOMB, r"c\.yaml, line \d: with its aliases written out it has more than 5,000,000 values"),
    "a bomb of merges": ("c.yaml", MERGED, r"c\.yaml, line \d: with its aliases written out"),
    "an alias in itself": ("c.yaml", "&a [*a]", r"c\.yaml, line 1: it contains itself"),
    "a tag of Python": ("c.yaml", "- !!python/object/apply:os.system [x]", r"c\.yaml, line 1: the tag '.*os\.system'"),
    "a tag that its library trips over": ("c.yaml", "- goal: !!bool x", r"c\.yaml, line 1: the tag"),
    "a day that does not exist": ("c.yaml", "- {goal: x, expected: 2025-13-45}", r"c\.yaml: not YAML: month"),
    "two documents": ("c.yaml", "- {goal: x}\n---\n- {goal: y}\n", r"c\.yaml, line 2: not YAML: but found another document"),
    "a key that is a list": ("c.yaml", "- {[a]: b, goal: x}", r"c\.yaml, line 1: not YAML: found unhashable key"),
    "other letters": ("c.csv", "goal\ncafé\n".encode("latin-1"), r"c\.csv is not UTF-8 text: byte 8.*save it as UTF-8"),
    "UTF-16": ("c.json", "[]".encode("utf-16"), r"c\.json is not UTF-8 text"),
    "no list": ("c.json", '"x"', r"c\.json: give a list of cases"),
    "nothing": ("c.yaml", "", r"c\.yaml: give a list of cases"),
    "a row that is no table": ("c.json", '[{"goal": "x"}, "y"]', r"c\.json: case 2 is 'y'; give a table with a goal"),
    "a row without a goal": ("c.json", '[{"goal": "x"}, {"id": "b"}]', r"c\.json: case 2 \('b'\) has no goal; name it goal"),
    "a blank goal": ("c.json", '[{"goal": " "}]', r"c\.json: case 1: case '1' has no goal"),
    "two goals": ("c.json", '[{"goal": "x", "input": "y"}]', r"case 1 has goal and input, which mean the same"),
    "a goal that is a number": ("c.json", '[{"goal": 3}]', r"case 1 has the goal 3; write it as text"),
    "an id twice": ("c.jsonl", '{"goal": "x", "id": 1}\n{"goal": "y"}\n{"goal": "z", "id": "1"}', r"c\.jsonl: cases 1 and 3 have the id '1'"),
    "an id of control characters": ("c.json", '[{"goal": "x", "id": "\\u001b[2J"}]', r"case 1.*: the id of a case is"),
    "a file outside": ("c.json", '[{"goal": "x", "files": {"../y": "z"}}]', r"case 1: case '1' has the file '../y', which is outside"),
    "files that are no table": ("c.json", '[{"goal": "x", "files": 3}]', r"case 1: Expected `object`, got `int` - at `\$\.files`"),
    "a sandbox": ("c.json", '[{"input": "x", "sandbox": "docker"}]', r"case 1 runs in a sandbox of its own.*Leave `sandbox` out"),
    "a setup": ("c.json", '[{"input": "x", "setup": "rm -rf /"}]', r"case 1 has a script that prepares its sandbox"),
    "a file's path": ("c.json", '[{"input": "x", "files": {"a": "/etc/passwd"}}]', r"the file 'a' is '/etc/passwd'; write the text"),
    "several targets": ("c.json", '[{"input": "x", "target": ["a", "b"]}]', r"case 1 has 2 targets"),
    "several messages": ("c.json", '[{"input": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}]', r"begins with 2 messages"),
    "a wrong evaluator": ("c.json", '[{"inputs": "x", "evaluators": [{"A": 1, "B": 2}]}]', r"case 1: the evaluator .* is neither"),
    "evaluators of a report": ("c.json", '{"cases": [{"inputs": "x"}], "report_evaluators": ["A"]}', r"c\.json: report_evaluators judge"),
    "another ending": ("c.parquet", "x", r"c\.parquet: give a file that ends in"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_cannot_be_read_says_which_file_and_row_and_why(tmp_path: Path, attack: str) -> None:
    name, text, said = ATTACKS[attack]
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=said) as raised:
        load_cases(tmp_path / name)
    assert len(str(raised.value)) < 700 and str(raised.value).isprintable()
    (tmp_path / "suite.toml").write_text(f"name = 's'\ncases = '{name}'")
    with pytest.raises(ConfigError, match=said):
        load_suite(tmp_path / "suite.toml")


def test_a_file_that_is_too_large_or_none_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "c.jsonl").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    os.mkfifo(tmp_path / "pipe.json")
    for name, said in (
        ("c.jsonl", "more than 64 MiB"),
        ("pipe.json", "is not a file"),
        ("none.json", "cannot be read: No such file"),
        ("", "is not a file"),
    ):
        with pytest.raises(ConfigError, match=said):
            load_cases(tmp_path / name)


def test_texts_keep_their_line_breaks_and_dates_are_text(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_bytes(
        '\ufeffid,goal,expected,tags,metadata\r\na,"two\nlines",,x y,"{""level"": 3}"\r\n\r\nb,"say ""hi""\u2028",3,,\r\n'.encode()
    )
    (tmp_path / "c.jsonl").write_text(json.dumps({"goal": "one\u2028line"}, ensure_ascii=False) + "\r\n\n")
    (tmp_path / "c.yaml").write_text(
        "base: &base {expected: 2025-01-02}\ncases:\n- {<<: *base, goal: when}\n- {<<: *base, goal: again, expected: no-one}\n"
    )
    a, b = load_cases(tmp_path / "c.csv")
    assert (a.goal, a.expected, a.tags, a.metadata) == ("two\nlines", None, ("x", "y"), {"level": 3})
    assert (b.goal, b.expected, b.metadata) == ('say "hi"\u2028', "3", {})
    assert load_cases(tmp_path / "c.jsonl")[0].goal == "one\u2028line"
    assert [case.expected for case in load_cases(tmp_path / "c.yaml")] == ["2025-01-02", "no-one"]


def test_a_file_of_inspect_is_cases(tmp_path: Path) -> None:
    row = {
        "input": "Which is a city?",
        "target": "B",
        "choices": ["x", "Paris"],
        "id": 7,
        "metadata": {"level": "easy"},
        "files": {"a.txt": "text"},
    }
    chat = {"input": [{"role": "user", "content": "Hi"}], "target": ["Hello"]}
    (tmp_path / "c.json").write_text(json.dumps([row, chat]))
    one, two = load_cases(tmp_path / "c.json")
    assert one == Case(
        id="7", goal="Which is a city?\n\nA) x\nB) Paris", expected="B", metadata={"level": "easy"}, files={"a.txt": "text"}
    ) and (two.goal, two.expected) == ("Hi", "Hello")  # fmt: skip


YAML = """# yaml-language-server: $schema=cases_schema.json
name: sums
cases:
- name: a
  inputs: {question: "2 + 2", unit: m}
  expected_output: 4
  metadata: {level: easy}
  evaluators:
  - Contains: {value: four, case_sensitive: false}
- {name: b, inputs: "1 + 1", expected_output: 2}
evaluators:
- EqualsExpected
- LLMJudge: It is polite.
"""


def test_a_file_of_pydantic_evals_is_cases_and_its_evaluators_are_graders(tmp_path: Path) -> None:
    """One that is not ours is refused by its name before anything runs, unless a function is given for it."""
    (tmp_path / "c.yaml").write_text(YAML)
    a, b = load_cases(tmp_path / "c.yaml")
    assert json.loads(a.goal) == a.variables == {"question": "2 + 2", "unit": "m"}
    assert (a.expected, a.metadata, b.goal, b.expected) == (4, {"level": "easy"}, "1 + 1", 2)
    ours = [{"kind": "exact"}, {"kind": "LLMJudge", "expected": "It is polite."}]
    assert list(b.graders) == ours and list(a.graders) == [{"kind": "contains", "expected": "four", "ignore_case": True}, *ours]

    async def run() -> None:
        async with Engine(store="ram:", agents=[Agent(name="a", tools=(), rules=[{"name": "r", "answer": "two"}])]) as engine:
            with pytest.raises(ConfigError, match="case 'a': there is no grader 'LLMJudge'"):
                await evaluate(engine, Suite(name="x", cases=(a, b)))
            assert await engine.list_runs() == []

    asyncio.run(run())


@dataclass
class Spec:
    """What `as_spec` of an evaluator returns."""

    name: str
    arguments: Any


@dataclass
class Contains:
    """An evaluator as pydantic-evals has them."""

    value: str

    def as_spec(self) -> Spec:
        """Return it as data."""
        return Spec("Contains", (self.value,))


@dataclass
class Theirs:
    """A case as pydantic-evals has them."""

    inputs: Any
    name: str | None = None
    expected_output: Any = None
    metadata: Any = None
    evaluators: list[Any] = field(default_factory=list[Any])


@dataclass
class Sample:
    """A sample as Inspect has them."""

    input: Any
    target: Any = ""
    sandbox: Any = None


def test_objects_of_others_are_cases() -> None:
    (one,) = cases_of([Theirs("hi", evaluators=[Contains("hello")], metadata={"x": 1})])
    assert (one.goal, one.graders, one.metadata) == ("hi", ({"kind": "contains", "expected": "hello", "ignore_case": False},), {"x": 1})
    assert cases_of([Sample("hi", "there"), Sample("you")])[1] == Case(id="2", goal="you")
    assert cases_of([{"question": "hi", "level": 3}])[0].variables == {"level": 3}
    for wrong, said in ((Sample("x", sandbox="docker"), "case 1 runs in a sandbox"), (object(), "not JSON data"), (3, "case 1 is 3")):
        with pytest.raises(ConfigError, match=said):
            cases_of([wrong])
    with pytest.raises(ConfigError, match="the data set is a dict"):
        cases_of({"goal": "x"})
