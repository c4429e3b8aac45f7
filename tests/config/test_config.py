"""Configuration as data, and as files, variables and import paths: merge, precedence, mistakes, and an engine made from it (rows T1-T9)."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from detent import Agent, Budget, Engine
from detent.config.engines import Config, LimitsConfig, OutputConfig, StoreConfig, WorkspaceConfig
from detent.config.environment import ENVIRONMENT, config_from_environment, parse_budget
from detent.config.imports import load_part, load_tool
from detent.config.loading import find_config, load_agent, load_config
from detent.config.state_directory import store_url
from detent.core.errors import BudgetRefused, ConfigError, UnknownName
from laws.places import PurePlanner

TOOLS = '''\
"""Tools of a test."""

from detent import tool


@tool(side_effect="read")
def look(path: str) -> str:
    """Look."""
    return path


def plain(path: str) -> str:
    return path


class Watcher:
    """An observer."""

    def on_record(self, record, state):
        pass

    def on_chunk(self, chunk):
        pass


class Broken:
    """Cannot be made."""

    def __init__(self):
        raise RuntimeError("no battery")
'''
RULES = "- name: look\n  call: {tool: look, args: {path: a}}\n- name: end\n  answer: seen\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "rules.yaml").write_text(RULES)
    return tmp_path


# Merge --------------------------------------------------------------------------------------------------------------------------


def test_what_is_said_wins_and_what_is_not_falls_through() -> None:
    """Field by field, part by part; the base is not changed."""
    base = Config(store=StoreConfig(url="ram:", lease_s=5.0), budget=Budget(max_iterations=9, max_tool_calls=8), agent="a.toml")
    merged = Config(store=StoreConfig(url="file:x"), budget=Budget(max_iterations=3)).over(base)
    assert merged == Config(store=StoreConfig(url="file:x", lease_s=5.0), budget=Budget(max_iterations=3, max_tool_calls=8), agent="a.toml")
    assert base.store.url == "ram:"


def test_an_explicit_zero_and_false_are_kept() -> None:
    """They are values, not "unset" (rows T3 and T9 as changed)."""
    said = Config(output=OutputConfig(verbosity=0, progress=False), workspace=WorkspaceConfig(allow_delete=False), tools=(), agents={})
    base = Config(
        output=OutputConfig(verbosity=2, progress=True), workspace=WorkspaceConfig(allow_delete=True), tools=("x:y",), agents={"a": "b"}
    )
    merged = said.over(base)
    assert (merged.output, merged.workspace.allow_delete) == (OutputConfig(verbosity=0, progress=False), False)
    assert (merged.tools, merged.agents) == ((), {})


def test_merging_is_associative_and_nothing_is_neutral() -> None:
    """The order of application does not matter, only that of precedence."""
    a = Config(store=StoreConfig(url="ram:"), limits=LimitsConfig(ceiling=7))
    b = Config(limits=LimitsConfig(ceiling=8, max_concurrent_runs=0), agent="b")
    c = Config(agent="c", redact=("x",), agents={"n": "f"})
    assert a.over(b).over(c) == a.over(b.over(c))
    assert a.over(Config()) == Config().over(a) == a


# Files --------------------------------------------------------------------------------------------------------------------------


def test_a_missing_configuration_file_is_normal_and_a_named_one_must_be_there(home: Path) -> None:
    """Row R32: no detent.toml is no error; one that was asked for is (row T2)."""
    assert find_config(home) is None
    with pytest.raises(ConfigError, match=r"failed to read config file 'nope\.toml'"):
        load_config("nope.toml")
    (home / "detent.toml").write_text("[budget\n")
    assert find_config(home) == home / "detent.toml"
    with pytest.raises(ConfigError, match="failed to parse config file"):
        load_config("detent.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stroe = 'ram:'", "detent.toml: stroe: unknown key; did you mean 'store'?"),
        ("[store]\nurll = 'ram:'", "detent.toml: store.urll: unknown key; did you mean 'url'?"),
        ("[budget]\nmax_iteration = 3", "detent.toml: budget.max_iteration: unknown key; did you mean 'max_iterations'?"),
        ("[budget]\nmax_iterations = '3'", "detent.toml: budget.max_iterations: expected a whole number, found the text '3'"),
        ("[budget]\nmax_iterations = true", "detent.toml: budget.max_iterations: expected a whole number, found true"),
        ("[budget]\nmax_iterations = 0", "detent.toml: budget.max_iterations is 0"),
        ("[workspace]\nallow_delete = 'yes'", "detent.toml: workspace.allow_delete: expected true or false, found the text 'yes'"),
        ("budget = 3", "detent.toml: budget: expected a table, found 3"),
        ("observers = 'x:y'", "detent.toml: observers: expected a list of texts, found the text 'x:y'"),
        ("[agents]\na = 1", "detent.toml: agents: expected a table of texts"),
        ("name = 'x'\nrules = 'r'", "this is an agent file"),
    ],
)
def test_each_mistake_in_a_configuration_names_file_key_and_what_is_right(home: Path, text: str, said: str) -> None:
    """The nearest key for an unknown one; what was expected and found for a wrong type."""
    (home / "detent.toml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_config("detent.toml")
    assert said in str(error.value)


def test_paths_in_a_configuration_are_relative_to_it(home: Path) -> None:
    """Read from elsewhere, they still mean the same files; absolute ones and module names stay."""
    (home / "sub").mkdir()
    (home / "sub" / "detent.toml").write_text(
        'store = "sqlite:///runs.db"\nworkspace = "files"\nagent = "agent.toml"\n'
        'tools = ["./tools.py:look", "pkg.mod:tool"]\n[agents]\nother = "other.toml"\n'
    )
    config = load_config("sub/detent.toml")
    assert config.store.url == "sqlite:///sub/runs.db"
    assert (config.workspace.root, config.agent) == ("sub/files", "sub/agent.toml")
    assert config.agents == {"other": "sub/other.toml"}
    assert config.tools == (f"{home / 'sub' / 'tools.py'}:look", "pkg.mod:tool")


def test_an_agent_file_becomes_an_agent(home: Path) -> None:
    """Tools by name and by import path, rules from their file, and in `meta` what a later process needs."""
    (home / "a.toml").write_text(
        'name = "a"\ntools = ["read_file", "./tools.py:look"]\nrules = "rules.yaml"\nworkspace = "w"\non_deny = "fail"\n'
        "[budget]\nmax_iterations = 5\n[variables]\nn = 1\n[meta]\nowner = 'me'\n"
    )
    agent = load_agent("a.toml")
    assert (agent.name, agent.tool_names(), agent.budget, agent.variables) == (
        "a",
        ("read_file", "look"),
        Budget(max_iterations=5),
        {"n": 1},
    )
    assert [rule["name"] for rule in agent.rules] == ["look", "end"]
    assert agent.on_deny == "fail"
    assert agent.meta == {
        "owner": "me",
        "agent_file": str(home / "a.toml"),
        "workspace": str(home / "w"),
        "tool_imports": [f"{home / 'tools.py'}:look"],
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("instructions = 'x'", "a.toml: name: missing"),
        (
            "name = 'x'\nplanner = './p.py:Clerk'",
            "a.toml: planner: your own planner serves every agent, so set it in detent.toml: planner = './p.py:Clerk'",
        ),
        (
            "name = 'x'\npolicy = 'mine:Strict'",
            "a.toml: policy: your own policy governs every agent, so set it in detent.toml: policy = 'mine:Strict'",
        ),
        (
            "name = 'x'\nobservers = ['./o.py:Diary']",
            "a.toml: observers: observers see every run, so set it in detent.toml: observers = ['./o.py:Diary']",
        ),
        ("name = 'x'\nnmae = 'y'", "a.toml: nmae: unknown key; did you mean 'name'?"),
        ("name = 'x'\non_deny = 'ask'", "a.toml: on_deny: expected one of 'observe', 'fail', found the text 'ask'"),
        ("name = 'x'\ntools = 'read_file'", "a.toml: tools: expected a list of texts, found the text 'read_file'"),
        ("name = 'x'\nrules = 3", "a.toml: rules: expected text or a list of tables, found 3"),
        ("name = 'x'\n[[rules]]\nname = 'r'\nwen = 'true'\nanswer = 'x'", "unknown key 'wen'"),
        ("name = 'x'\nredact = ['(']", "a.toml: redact: redact pattern '(' is not a regular expression"),
        ("name = 'x'\n[variables]\nday = 2026-01-31", "a.toml: variables.day: a date is not JSON; put it in quotes: '2026-01-31'"),
        ("name = 'x'\n[variables]\nn = inf", "a.toml: variables.n: inf is not JSON"),
        ("name = 'x'\ntools = ['./tools.py:lok']", "there is no 'lok' in"),
        ("name = 'x'\ntools = ['./tools.py:plain']", "is the function 'plain', not a tool; decorate it with @tool"),
        ("name = 'x'\ntools = ['./none.py:look']", "there is no file"),
        ("name = 'x'\ntools = ['no_such_module_here:look']", "No module named 'no_such_module_here'"),
        (
            "name = 'x'\ntools = ['read_file']\nrules = 'rules.yaml'",
            "a.toml: tools: rule 'look' calls 'look', which the agent does not list",
        ),
        ("name = 'x'\n[budget]\nmax_cost_usd = -1", "a.toml: budget.max_cost_usd is -1"),
    ],
)
def test_each_mistake_in_an_agent_file_names_file_key_and_what_is_right(home: Path, text: str, said: str) -> None:
    """Before anything is run."""
    (home / "a.toml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_agent("a.toml")
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("key", "kind"),
    [("compaction = 'nope'", "compactor"), ("strategy = 'nope'", "strategy"), ("kernel = 'nope'", "kernel"), ("tools = ['nope']", "tool")],
)
def test_a_name_that_only_an_engine_can_know_is_refused_with_the_file(home: Path, key: str, kind: str) -> None:
    """Among several agent files the name alone does not tell which one to mend."""
    (home / "a.toml").write_text(f"name = 'x'\nmodel = 'test:x'\n{key}\n")
    with pytest.raises(UnknownName, match=rf"a\.toml: unknown {kind} 'nope'"):
        Engine(planner=PurePlanner(lambda view: None), store="ram:").run_sync(load_agent("a.toml"), "hi")


def test_a_file_of_tools_is_imported_once(home: Path) -> None:
    """Two agents that name the same tool share it, so that registering it twice is no conflict."""
    path = f"{home / 'tools.py'}:look"
    assert load_tool(path, "x") is load_tool(path, "x")


def test_a_file_that_fails_to_import_is_named_and_can_be_mended(home: Path) -> None:
    """The error is the file's own; the next attempt reads the file again."""
    (home / "bad.py").write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"tools: .*bad.py:x' cannot be imported: ZeroDivisionError"):
        load_tool(f"{home / 'bad.py'}:x", "tools")
    (home / "bad.py").write_text(TOOLS)
    assert load_tool(f"{home / 'bad.py'}:look", "tools").name == "look"


def test_a_part_is_an_object_or_a_class_that_is_called(home: Path) -> None:
    """A class is made; anything else is taken as it is."""
    assert type(load_part(f"{home / 'tools.py'}:Watcher", "x")).__name__ == "Watcher"
    assert load_part(f"{home / 'tools.py'}:look", "x").name == "look"


# Environment and options ----------------------------------------------------------------------------------------------------------


def test_every_documented_variable_reaches_its_key() -> None:
    """Each name of the table sets exactly its field."""
    for name, path in ENVIRONMENT.items():
        text = {"DETENT_PROGRESS": "true", "DETENT_TITLES": "true", "DETENT_SANDBOX": "require"}.get(name, "7")
        value: Any = config_from_environment({name: text})
        for part in path:
            value = getattr(value, part)
        assert str(value).lower() in (text, "7.0"), name


def test_variables_are_read_as_their_kind_and_mistakes_are_named() -> None:
    """Empty says nothing; another program's variable is none of ours; one that is nearly ours is an error."""
    assert config_from_environment({"DETENT_STORE": "", "PATH": "x", "DETENT_QUITE_ANOTHER_THING": "1"}) == Config()
    assert config_from_environment({"DETENT_PROGRESS": "off", "DETENT_VERBOSITY": "0"}).output == OutputConfig(verbosity=0, progress=False)
    with pytest.raises(ConfigError, match="DETENT_STROE: unknown variable; did you mean 'DETENT_STORE'"):
        config_from_environment({"DETENT_STROE": "ram:"})
    with pytest.raises(ConfigError, match="DETENT_MAX_ITERATIONS: expected a whole number, found 'many'"):
        config_from_environment({"DETENT_MAX_ITERATIONS": "many"})
    with pytest.raises(BudgetRefused, match="max_iterations is 0"):
        config_from_environment({"DETENT_MAX_ITERATIONS": "0"})
    with pytest.raises(ConfigError, match="DETENT_PROGRESS: expected true or false, found 'maybe'"):
        config_from_environment({"DETENT_PROGRESS": "maybe"})


def test_bounds_are_given_as_pairs() -> None:
    """With or without `max_`, with - for _; a wrong one is named with the nearest."""
    assert parse_budget(["max_iterations=3", "tool-calls=4", "cost_usd=0.5"]) == Budget(
        max_iterations=3, max_tool_calls=4, max_cost_usd=0.5
    )
    for pair, said in (
        ("max_iteration=3", "did you mean 'max_iterations'"),
        ("iterations", "unknown bound"),
        ("iterations=x", "a whole number"),
    ):
        with pytest.raises(ConfigError, match=said):
            parse_budget([pair])
    with pytest.raises(BudgetRefused):
        parse_budget(["iterations=0"])


# The engine -----------------------------------------------------------------------------------------------------------------------


def test_an_engine_is_made_from_a_file(home: Path) -> None:
    """Store, workspace, tools, observers, limits and budget are those of the file; a run uses them."""
    (home / "files").mkdir()
    (home / "detent.toml").write_text(
        'store = "file:runs"\nworkspace = "files"\ntools = ["./tools.py:look"]\nobservers = ["./tools.py:Watcher"]\n'
        "[limits]\nceiling = 20\nmax_concurrent_runs = 2\n[budget]\nmax_iterations = 7\n"
    )
    (home / "a.toml").write_text('name = "a"\ntools = ["./tools.py:look"]\nrules = "rules.yaml"\n')

    async def main() -> None:
        async with Engine.from_config("detent.toml", trust=True) as engine:
            assert {"look", "read_file"} <= set(engine.tools.names())
            result = await engine.run(load_agent("a.toml"), "look")
            assert (result.status, result.output, result.state.budget.max_iterations) == ("completed", "seen", 7)
            with pytest.raises(BudgetRefused):
                await engine.run(load_agent("a.toml"), "look", budget=Budget(max_iterations=21))
        assert (home / "runs").is_dir()

    asyncio.run(main())


def test_what_the_caller_gives_replaces_what_was_made(home: Path) -> None:
    """Row T8: a store, tools, a workspace of one's own."""
    (home / "w").mkdir()
    engine = Engine.from_config(Config(tools=(f"{home / 'tools.py'}:look",), workspace=WorkspaceConfig(root=".")), store="ram:", tools=[])
    assert engine.store.url == "ram:"
    assert "look" not in engine.tools
    assert "read_file" in engine.tools
    assert (
        "read_file"
        in Engine.from_config(Config(store=StoreConfig(url="ram:"), workspace=WorkspaceConfig(root=".")), workspace=home / "w").tools
    )


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (Config(store=StoreConfig(url="sqlit:///x")), "failed to create store: .* did you mean sqlite:///PATH"),
        (Config(store=StoreConfig(url="ram:", lease_s=3.0)), "failed to create store: .*lease_s"),
        (Config(workspace=WorkspaceConfig(root="nowhere")), "failed to create workspace: .*nowhere"),
        (Config(tools=("tools.py:look:x",)), "failed to create tools"),
        (Config(planner="tools.py:Nothing"), "failed to create planner: .*Nothing"),
        (Config(policy="tools.py:Broken"), "failed to create policy: RuntimeError: no battery"),
        (Config(observers=("tools.py:Broken",)), "failed to create observers: RuntimeError: no battery"),
    ],
)
def test_a_part_that_cannot_be_made_names_itself(home: Path, config: Config, said: str) -> None:
    """Row T7; also where an override would have replaced it: the cold start comes first (row T8)."""
    with pytest.raises(ConfigError, match=said):
        Engine.from_config(config, planner=None)


def test_the_first_part_that_fails_is_the_one_that_is_named(home: Path) -> None:
    """Parts are made in order: store before workspace before observers."""
    broken = Config(store=StoreConfig(url="no:"), workspace=WorkspaceConfig(root="nowhere"), observers=("tools.py:Broken",))
    with pytest.raises(ConfigError, match="failed to create store"):
        Engine.from_config(broken)


def test_a_zero_is_not_taken_for_unset(home: Path) -> None:
    """It reaches the engine, which refuses it, instead of being replaced by the default."""
    with pytest.raises(ConfigError, match="max_concurrent_runs is 0"):
        Engine.from_config(Config(store=StoreConfig(url="ram:"), limits=LimitsConfig(max_concurrent_runs=0)))


def test_without_anything_the_defaults_hold(home: Path) -> None:
    """The store of the command line, so that both see the same runs."""
    assert Engine.from_config().store.url == store_url(home)
    assert store_url(home).startswith("sqlite:////")


def test_configuration_is_light_to_import() -> None:
    """`detent.config.agents` is loaded with the package; reading files is not."""
    import subprocess

    code = (
        "import sys, detent; print([m for m in ('detent.config.loading', 'detent.config.assembly', 'tomllib', 'yaml') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_an_agent_made_in_code_needs_no_file() -> None:
    """`Agent` and its specification are unchanged by the files."""
    assert Agent(name="x", tools=["a", "a"]).spec().tools == ("a",)


def test_the_times_that_are_promised_are_the_defaults() -> None:
    """Signals are seen within 500 ms, a cancelled call has 5 s, a busy store is waited for 30 s, a program runs for 30 s, a claim lasts over renewals."""
    from detent.config.groups import Bounds
    from detent.running import watcher
    from detent.stores import locks
    from detent.tools.workspace import process

    assert watcher.POLL_S <= 0.5
    assert (Bounds().grace_s, locks.BUSY_TIMEOUT_S, process.DEFAULT_TIMEOUT_S) == (5.0, 30.0, 30.0)
    assert 3 * watcher.RENEW_S <= locks.LEASE_S, "a renewal may be late twice"
