"""The reference is complete and current: what the code has is described, and what is described the code has."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

from amounts import in_check, thinned
from docs.pages import DOCS, ROOT, blocks, generated, name_of, pages, rows

pytestmark = thinned

PACKAGE = ROOT / "src" / "detent"
KEPT = [
    ("reference/errors.md", "errors"),
    ("reference/errors.md", "reasons"),
    ("howto/tools/write-a-tool.md", "tool options"),
]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """The script that makes the generated parts."""
    spec = importlib.util.spec_from_file_location("detent_docs_generator", ROOT / "scripts" / "docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_the_error_page_says_to_catch_or_raise_can_be_imported() -> None:
    """Such an error has a public name: `PassFailed` was to be caught, and only an internal module had it."""
    import detent
    from detent import extend

    page = (DOCS / "reference" / "errors.md").read_text()
    told = re.findall(r"^\| `(\w+)` \|.*\| [^|]*\b(?:catch|raise) it\b[^|]*\|$", page, re.MULTILINE)
    assert "PassFailed" in told and "EffectFailed" in told
    assert [name for name in told if name not in {*detent.__all__, *extend.__all__}] == []


def command_line() -> Any:
    """The command line as the library sees it."""
    import typer

    from detent.cli.main import make_app

    return typer.main.get_command(make_app())


def first_cells(page: str, name: str) -> list[str]:
    """Return the first cells of a generated table, without backticks."""
    return [row[0].strip("`") for row in rows(generated(DOCS / page, name))]


# Generated parts --------------------------------------------------------------------------------------------------------------


@in_check
@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_generated_parts_are_current(page: Path, generator: ModuleType) -> None:
    """Each is what `scripts/docs.py` makes of the code as it is now."""
    text = page.read_text(encoding="utf-8")
    assert generator.renewed(text) == text, "run: python scripts/docs.py"


def test_every_part_that_can_be_generated_stands_on_one_page(generator: ModuleType) -> None:
    """No generator is forgotten, and no table stands twice."""
    found = [m["name"] for page in pages() for m in generator.PART.finditer(page.read_text(encoding="utf-8"))]
    assert sorted(found) == sorted(generator.PARTS)


@pytest.mark.parametrize(("page", "name"), KEPT)
def test_every_row_says_what_it_means(page: str, name: str) -> None:
    """The columns that are written by hand have no empty cell."""
    assert [row[0] for row in rows(generated(DOCS / page, name)) if not row[-1]] == []


def test_a_row_that_goes_loses_its_text_and_one_that_comes_is_empty(generator: ModuleType) -> None:
    """Texts written by hand follow their row by its first cell, a bar in them included."""
    old = generator.table(("name", "meaning"), [("`a`", "one | two"), ("`gone`", "old")])
    assert generator.kept(("name", "meaning"), [("`new`",), ("`a`",)], old) == generator.table(
        ("name", "meaning"), [("`new`", ""), ("`a`", "one | two")]
    )


# Errors -----------------------------------------------------------------------------------------------------------------------


def test_every_error_is_described() -> None:
    """The table of errors has every class of the tree, each once, with its code."""
    from detent.core import errors

    classes = {name: c for name, c in vars(errors).items() if isinstance(c, type) and issubclass(c, errors.DetentError)}
    table = {row[0].strip("`"): row[1].strip("`") for row in rows(generated(DOCS / "reference/errors.md", "errors"))}
    assert table == {name: c.code for name, c in classes.items()}


def codes_of_calls() -> set[str]:
    """Return the codes of failed calls that stand in the kernel and in what makes tools, workspace tools left out."""
    sources = [*(PACKAGE / "kernel").glob("*.py"), PACKAGE / "core" / "fold.py", PACKAGE / "core" / "errors.py"]
    sources += [*(PACKAGE / "running").glob("*.py")]
    sources += [PACKAGE / "tools" / "functions" / name for name in ("attempt.py", "function.py", "results.py", "schema.py", "signature.py")]
    found: set[str] = set()
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                said = [k.value for k in node.keywords if k.arg in ("error_code", "code", "refused")]
                said += node.args[2:3] if ast.unparse(node.func).endswith("refuse") else []
                said += node.args[1:2] if ast.unparse(node.func).endswith("_unfit") else []
                said += node.args[2:3] if ast.unparse(node.func) == "give_up" else []
                said += node.args[:1] if ast.unparse(node.func) == "Refused" else []
            elif isinstance(node, ast.AsyncFunctionDef) and node.name == "_refusal":
                said = [n.elts[0] for n in ast.walk(node) if isinstance(n, ast.Tuple) and isinstance(n.ctx, ast.Load)]
            elif isinstance(node, ast.AnnAssign | ast.Assign) and "default_error_code" in ast.unparse(node):
                said = [node.value]
            else:
                continue
            found.update(s.value for s in said if isinstance(s, ast.Constant) and isinstance(s.value, str) and s.value)
    return found


@in_check
def test_every_code_of_a_failed_call_is_described() -> None:
    """The table of codes has what the kernel gives, and nothing else."""
    section = (DOCS / "reference/errors.md").read_text(encoding="utf-8").split("## How a call fails")[1]
    described = {row[0].strip("`") for row in rows(section)}
    # `policy_stopped` marks a call that is left over when the policy ends the run: that is the run's reason.
    assert codes_of_calls() - {"policy_stopped"} == described


def test_every_reason_of_an_end_is_described() -> None:
    """The table has the closed list."""
    from detent.core.settle import REASONS

    assert first_cells("reference/errors.md", "reasons") == list(REASONS)


# Events, configuration --------------------------------------------------------------------------------------------------------


def test_every_event_and_action_is_described() -> None:
    """The tables have the two closed unions."""
    from detent.core import actions, events

    listed = re.findall(r"^\| `(\w+)` \|", generated(DOCS / "reference/events.md", "events"), re.MULTILINE)
    assert sorted(listed) == sorted(c.__name__ for c in get_args(events.AnyEvent))
    assert sorted(first_cells("reference/events.md", "actions")) == sorted(c.__name__ for c in get_args(actions.AnyAction))


def test_every_key_is_described(generator: ModuleType) -> None:
    """`detent.toml`, agent file, bounds: the tables have every key, and `detent init` writes no other."""
    import tomllib

    from detent.config.engines import Config
    from detent.config.loading import AgentFile
    from detent.core.budget import Budget

    keys = first_cells("reference/configuration.md", "detent.toml")
    assert "Settings |" not in (DOCS / "reference/configuration.md").read_text(encoding="utf-8"), "types are words there"
    assert {k.strip("[]").split(".")[0] for k in keys} == set(Config.__struct_fields__)
    in_agent_files = {key for key in AgentFile.__struct_fields__ if ("AgentFile", key) not in generator.NOT_IN_FILES}
    assert {k.strip("[]") for k in first_cells("reference/configuration.md", "agent file")} == in_agent_files
    assert first_cells("reference/configuration.md", "bounds") == list(Budget.__struct_fields__)
    for written in (ROOT / "examples" / "templates").rglob("*.toml"):
        described = in_agent_files if written.name == "agent.toml" else {k.split(".")[0].strip("[]") for k in keys}
        assert set(tomllib.loads(written.read_text(encoding="utf-8"))) <= described, written


def test_every_environment_variable_is_described_and_exists() -> None:
    """Configuration names all of them; no page names another."""
    from detent.config.environment import ENVIRONMENT, OTHERS

    known = {*ENVIRONMENT, *OTHERS}
    said = {name for page in pages() for name in re.findall(r"\bDETENT_[A-Z_]+[A-Z]\b", page.read_text(encoding="utf-8"))}
    assert said - known == set()
    assert known - set(re.findall(r"DETENT_[A-Z_]+", (DOCS / "reference/configuration.md").read_text(encoding="utf-8"))) == set()


# Command line -----------------------------------------------------------------------------------------------------------------


def test_every_command_and_option_is_described() -> None:
    """cli.md has each command, and each of its options in the section of the command."""
    text = generated(DOCS / "reference/cli.md", "commands")
    parts = dict(re.findall(r"^#### detent ([\w-]+)\n(.*?)(?=^#{3,4} |\Z)", text, re.MULTILINE | re.DOTALL))
    commands = command_line().commands
    assert set(parts) == set(commands)
    for name, command in commands.items():
        named = [opt for p in command.params if p.param_type_name == "option" for opt in p.opts]
        assert [opt for opt in named if f"`{opt}" not in parts[name]] == [], name


@pytest.mark.parametrize("name", sorted(command_line().commands))
def test_the_help_of_a_command_says_what_the_page_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`detent COMMAND --help` shows every option and every argument that cli.md has, in the same words, and breaks no line for itself."""
    from typer.testing import CliRunner

    from detent.cli.main import make_app

    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setenv("NO_COLOR", "1")
    shown = CliRunner().invoke(make_app(name), [name, "--help"])
    assert shown.exit_code == 0
    text = generated(DOCS / "reference/cli.md", "commands")
    part = re.search(rf"^#### detent {name}\n(.*?)(?=^#{{3,4}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert part is not None
    said = " ".join(re.sub(r"[│╭╮╰╯─]", " ", shown.output).split())
    about = part[1].partition("```")[0].strip().split("\n\n")
    assert [line.strip() for line in shown.output.split("╭")[0].split("\n") if line.strip()][1:] == about
    for names, meaning in rows(part[1]):
        assert all(option.strip("[].") in said for option in re.findall(r"`([^` ]+)", names))
        assert re.sub(r" Default: \d+\.$", "", meaning) in said  # a number is shown in brackets there


def test_commands_and_options_that_pages_show_exist() -> None:
    """Wherever a page writes `detent WORD --option`, the command has the option."""
    commands = command_line().commands
    wrong: list[str] = []
    for page in pages():
        text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
        said = re.findall(r"`detent ([^`\n]+)`", text)
        said += [
            line
            for b in blocks(page)
            if b.language in ("console", "text", "sh")
            for line in re.findall(r"(?<![\w/.-])(?<!-u )(?<!-n )detent ((?!-)[^\n|>&]+)", b.text)
        ]
        for line in said:
            name, *words = line.split()
            if not re.fullmatch(r"[a-z]+", name):
                continue
            known = {o for p in commands[name].params for o in p.opts} | {"--help", "--debug"} if name in commands else set[str]()
            options = [w.partition("=")[0] for w in words if re.match(r"--?[a-z]", w)]
            if name not in commands or set(options) - known:
                wrong.append(f"{name_of(page)}: detent {line}")
    assert wrong == []


def test_exit_codes_are_those_of_the_program() -> None:
    """The page of the command line lists the six codes with their words."""
    from detent.cli import output

    words = {output.COMPLETED: "completed", output.FAILED: "failed", output.USAGE: "usage"}
    words |= {output.WAITING: "waiting", output.STOPPED: "stopped", output.SUSPENDED: "suspended"}
    table = (DOCS / "reference/cli.md").read_text(encoding="utf-8").split("| exit code |")[1].split("\n\n")[0]
    listed = dict(re.findall(r"^\| (\d) \| (\w+)", table, re.MULTILINE))
    assert listed == {str(code): word for code, word in words.items()}


# Pages ------------------------------------------------------------------------------------------------------------------------


def test_the_two_commands_of_the_readme_are_what_ci_does() -> None:
    """One installs the package and runs the demo; the other installs the `dev` extra and runs the tests as scripts/check does."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8").split("## Two commands")[1].split("\n## ")[0]
    shown = re.findall(r"^```sh\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    assert [len(block.strip().splitlines()) for block in shown] == [1, 1]
    run, test = shown
    assert "pip install . &&" in run and run.strip().endswith("detent demo")
    assert "demo" in command_line().commands
    assert "pip install -e '.[dev]'" in test and test.strip().endswith("python -m pytest")
    assert "'.[dev]'" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert '"$python" -m pytest\n' in (ROOT / "scripts" / "check").read_text(encoding="utf-8")


def test_a_decision_fits_on_one_page() -> None:
    """Decision records have at most 40 lines, and say context, decision and consequences."""
    records = sorted((DOCS / "learn" / "decisions").glob("*.md"))
    assert records
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 40, record.name
        assert all(f"**{part}.**" in text for part in ("Context", "Decision", "Consequences")), record.name


def test_the_glossary_is_sorted_and_says_each_word_once() -> None:
    """A reader finds a word where it should stand."""
    words = [row[0] for row in rows((DOCS / "learn/glossary.md").read_text(encoding="utf-8"))]
    assert words == sorted(set(words))


def test_the_changelog_has_this_version() -> None:
    """Whoever installs this version finds what is new in it."""
    import detent

    assert re.search(rf"^## {re.escape(detent.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", [*pages(), ROOT / "CHANGELOG.md"], ids=name_of)
def test_pages_are_portable_markdown(page: Path) -> None:
    """No HTML beside the marks of generated parts, no tabs, one title, and no path of one machine."""
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    assert re.findall(r"<(?!!-- (?:generated: [\w. ]+|end) -->)[^>]+>", prose) == []
    assert "\t" not in text
    assert len(re.findall(r"^# ", prose, re.MULTILINE)) == 1
    assert re.findall(r"(?:/home/|/root/|/work/|/Users/)\S*", text) == []
