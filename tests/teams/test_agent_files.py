"""Agent files say whom an agent may start: by name, by file, or in a table of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from detent import Agent, Engine
from detent.config.demands import agent_demands, config_demands, listing
from detent.config.loading import load_agent, load_config, recorded, subagent_files
from detent.core.errors import ConfigError

RULES = '[[rules]]\nname = "done"\nanswer = "found ${goal}"\n'
ASKS = """
[[rules]]
name = "ask"
as = "heard"
call = {tool = "agent_helper", args = {goal = "notes"}}
[[rules]]
name = "done"
answer = "I heard: ${results.heard.value}"
"""
TOOLS = "from detent import tool\n@tool(side_effect='read')\ndef look(place: str) -> str:\n    'Look.'\n    return place\n"


def write(home: Path, **files: str) -> None:
    """Write files into a directory; `__` in a name is a slash, and the suffix is .toml."""
    for name, text in files.items():
        path = home / f"{name.replace('__', '/')}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


FORMS = {
    "a file": {"boss": 'name = "boss"\n[subagents]\nhelper = "helper.toml"\n', "helper": f'name = "helper"\n{RULES}'},
    "a table": {"boss": f'name = "boss"\n[subagents.helper]\n{RULES.replace("[[rules", "[[subagents.helper.rules")}'},
    "a folder": {
        "boss": 'name = "boss"\nsubagents = ["helper"]\n',
        "agents__helper": f'name = "helper"\n{RULES}',
        "detent": 'agents = "agents"\n',
    },
    "a name": {
        "boss": 'name = "boss"\nsubagents = ["helper"]\n',
        "detent": f"[agents.helper]\n{RULES.replace('[[rules', '[[agents.helper.rules')}",
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_declares_the_same_agent(form: str, tmp_path: Path) -> None:
    """It is loaded with the agent that starts it, so its data is in that agent's log."""
    files = FORMS[form]
    write(tmp_path, **files)
    agents = load_config(tmp_path / "detent.toml").agents if "detent" in files else None
    boss = load_agent(tmp_path / "boss.toml", agents=agents)
    assert isinstance(boss.subagents, dict) and isinstance(boss.subagents["helper"], Agent)
    assert boss.subagents["helper"].name == "helper" and boss.spec().subagents["helper"]["rules"][0]["name"] == "done"


def test_an_engine_made_from_a_file_knows_its_agents(tmp_path: Path) -> None:
    """A program starts them by name, and so do its agents."""
    write(tmp_path, detent='agents = "agents"\nstore = "ram:"\n')
    write(tmp_path, agents__helper=f'name = "helper"\n{RULES}', agents__boss=f'name = "boss"\nsubagents = ["helper"]\n{ASKS}')

    async def main() -> None:
        async with Engine.from_config(tmp_path / "detent.toml", trust=True, approver="caller") as engine:
            assert sorted(engine.agents) == ["boss", "helper"]
            done = await engine.run("boss", "go")
            assert (done.status, done.output) == ("completed", "I heard: found notes"), done.error

    asyncio.run(main())


@pytest.mark.parametrize(
    ("boss", "told"),
    [
        ('subagents = ["boss.toml"]', "it would start itself: boss.toml"),
        ('subagents = ["other.toml"]', "it would start itself: boss.toml -> other.toml -> boss.toml"),
        ('subagents = "other"', "expected a table or a list of texts"),
        ('[subagents]\n"two words" = "fine.toml"', "cannot be part of a tool's name"),
        ("[subagents.helper]\ntoools = []", "subagents.helper: toools: unknown key; did you mean 'tools'?"),
        ('[subagents]\nhelper = "missing.toml"', "failed to read agent file"),
        ('[subagents.helper]\nworkspace = "elsewhere"', "a team works in one"),
        ("[subagents.helper]\nagent = 5", "subagents.helper: agent is 5"),
        ('[subagents.helper]\nagent = "fine.toml"\ntools = []', "subagents.helper names another agent with 'agent'; leave out tools"),
        ('[subagents.helper]\non_parent_end = "waits"', "did you mean 'wait'?"),
        ('[subagents.helper]\nauto_background = "soon"', "auto_background is 'soon'"),
        ('[subagents.helper]\nauto_background = "2m"', "add 'join_agent' to tools"),
    ],
)
def test_mistakes_name_the_file_and_the_key(boss: str, told: str, tmp_path: Path) -> None:
    """Nobody has to guess in which of the files of a team the mistake is."""
    write(tmp_path, boss=f'name = "boss"\n{boss}\n', other='name = "other"\nsubagents = ["boss.toml"]\n', fine=f'name = "fine"\n{RULES}')
    with pytest.raises(ConfigError) as refused:
        load_agent(tmp_path / "boss.toml")
    assert (told in str(refused.value) and "boss.toml" in str(refused.value)) or "missing.toml" in str(refused.value)


@pytest.mark.parametrize("entry", ['agent = "below/helper.toml"', RULES.replace("[[rules", "[[subagents.helper.rules")])
def test_a_table_of_a_subagent_has_the_defaults_of_calls(entry: str, tmp_path: Path) -> None:
    """Beside the path of its file, or beside the keys of the agent itself; a file that is named so needs trust like any other."""
    options = 'on_parent_end = "wait"\nauto_background = "2m"\n'
    write(tmp_path, boss=f'name = "boss"\ntools = ["join_agent"]\n[subagents.helper]\n{options}{entry}\n')
    write(tmp_path, below__helper=f'name = "helper"\n{RULES}')
    said = load_agent(tmp_path / "boss.toml").spec().subagents["helper"]
    assert (said["on_parent_end"], said["auto_background"], said["rules"][0]["name"]) == ("wait", 120, "done")
    below = [tmp_path / "below/helper.toml"] if entry.startswith("agent") else []
    assert subagent_files(tmp_path / "boss.toml", {}) == below and ("below/helper.toml" in listing(tmp_path).files) == bool(below)


def test_what_tables_of_subagents_ask_for_needs_trust_like_the_file(tmp_path: Path) -> None:
    """Otherwise a table below would import code that nobody was asked about; a file below is listed, to be asked about itself."""
    inner = 'tools = ["./own.py:look"]\nverify = [{command = ["make"]}]\n'
    write(
        tmp_path, boss=f'name = "boss"\n[subagents]\nnear = "below/near.toml"\n[subagents.helper]\n{inner}', below__near='name = "near"\n'
    )
    write(tmp_path, detent=f"[agents.inline]\n{inner}")
    (tmp_path / "own.py").write_text(TOOLS, encoding="utf-8")
    asked = {(demand.key, demand.what) for demand in agent_demands(tmp_path / "boss.toml")}
    assert ("subagents.helper.tools", "./own.py:look") in asked and any(key == "subagents.helper.verify.command" for key, _ in asked)
    assert ("agents.inline.tools", "./own.py:look") in {(one.key, one.what) for one in config_demands(tmp_path / "detent.toml")}
    assert [one.what for one in agent_demands(tmp_path / "detent.toml#inline") if one.does == "import"] == ["./own.py:look"]
    assert subagent_files(tmp_path / "boss.toml", {}) == [tmp_path / "below/near.toml"]
    assert recorded(tmp_path / "boss.toml")["tool_imports"] == [f"{tmp_path / 'own.py'}:look"]
    assert recorded(tmp_path / "boss.toml")["verify_commands"] == [["make"]]
