"""The options of an agent are defined once: the log, programs, agent files, the JSON Schemas and the documentation follow from it."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import itertools
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import msgspec
import pytest
import yaml

from amounts import in_check
from detent import Agent
from detent.config import schema_lines
from detent.config.agents import ProgramOptions
from detent.config.engines import Config
from detent.config.loading import AgentFile, load_agent, load_config
from detent.config.schema_lines import SCHEMAS, schema_line
from detent.core.agent import AgentOptions, AgentSpec
from detent.core.budget import Budget
from detent.core.errors import ConfigError
from detent.evals import Suite
from detent.policies.documents import PolicyDocument
from detent.ports.options import takes
from docs.pages import DOCS, ROOT, Block, blocks, generated, name_of, pages, rows

WRITTEN = [(page, block) for page in pages() for block in blocks(page) if block.language in ("toml", "yaml")]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    """The script that makes schemas and tables."""
    spec = importlib.util.spec_from_file_location("detent_schema_generator", ROOT / "scripts" / "docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def problems(schema: str, data: Any, *, part: bool = False) -> list[str]:
    """Return what the shipped schema says against `data`; with `part`, nothing is required at the top."""
    document = json.loads((SCHEMAS / f"{schema}.json").read_text(encoding="utf-8"))
    if part:
        document.pop("required", None)
    return [error.message for error in jsonschema.Draft7Validator(document).iter_errors(data)]


# One definition ---------------------------------------------------------------------------------------------------------------


def test_every_form_of_an_agent_has_the_options_that_are_defined() -> None:
    """The log has exactly these, programs and files two more, and each of them what only it can say."""
    defined = AgentOptions.__struct_fields__
    assert AgentSpec.__struct_fields__ == defined
    assert ProgramOptions.__struct_fields__ == (*defined, "variables", "mcp")
    assert Agent.__struct_fields__ == (*ProgramOptions.__struct_fields__, "output_type")
    assert AgentFile.__struct_fields__ == (*ProgramOptions.__struct_fields__, "skills", "phases", "workspace", "sandbox")


@in_check
def test_an_option_is_added_in_one_place(tmp_path: Path) -> None:
    """One line and its documentation in `AgentOptions` reach program, log, file, schema and table."""
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    for file in ("README.md", "scripts/docs.py", "scripts/llms.py", "tests/planners/text/dialects.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    source = tmp_path / "src" / "detent" / "core" / "agent.py"
    text, mark = source.read_text(encoding="utf-8"), "    meta: dict[str, Any] = {}\n"
    source.write_text(
        text.replace(mark, f'    colours: Sequence[str] = ()\n    """Which colours it likes."""\n{mark}', 1), encoding="utf-8"
    )
    (tmp_path / "agent.toml").write_text('name = "painter"\ncolours = ["red"]\n', encoding="utf-8")
    program = (
        "from detent import Agent; from detent.config.loading import load_agent\n"
        "assert Agent(name='painter', colours=['red']).spec().colours == ('red',)\n"
        "assert load_agent('agent.toml').spec().colours == ('red',)\n"
        "import runpy; runpy.run_path('scripts/docs.py', run_name='__main__')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    schema = json.loads((tmp_path / "src/detent/config/schemas/agent.json").read_text(encoding="utf-8"))
    assert schema["properties"]["colours"] == {
        "description": "Which colours it likes.",
        "type": "array",
        "items": {"type": "string"},
    }
    table = generated(tmp_path / "docs" / "reference" / "configuration.md", "agent file")
    assert ["`colours`", "list of texts", "", "Which colours it likes.", ""] in rows(table)


def test_what_is_recorded_has_tuples() -> None:
    """Lists of a program and of a decoded log become tuples, so that specifications can be compared."""
    spec = Agent(name="a", tools=["x", "y"], redact=["z"], rules=[{"name": "r", "answer": "1"}]).spec()
    assert (spec.tools, spec.redact, spec.rules) == (("x", "y"), ("z",), ({"name": "r", "answer": "1"},))
    assert msgspec.json.decode(msgspec.json.encode(spec), type=AgentSpec) == spec


def test_the_recorded_agent_is_written_as_ever() -> None:
    """The order of the keys and what is left out stay, so that equal runs keep equal digests."""
    written = b'{"name":"a","tools":["t"],"budget":{},"plain_answers":true,"healing":true}'
    assert msgspec.json.encode(Agent(name="a", healing=True, tools=["t"]).spec()) == written


# Documentation ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "part"), [(AgentFile, "agent file"), (Budget, "bounds")])
def test_every_option_is_documented(kind: type, part: str, generator: ModuleType) -> None:
    """Each has a line below it, which stands in the table."""
    said = {key: meaning for key, meaning in generator.meanings(kind).items() if (kind.__name__, key) not in generator.NOT_IN_FILES}
    assert [name for name, meaning in said.items() if not meaning] == []
    assert {row[0].strip("`[]"): row[-2].replace("\\|", "|") for row in rows(generated(DOCS / "reference/configuration.md", part))} == said


@pytest.mark.parametrize("kind", [Config, *(type(getattr(Config(), f)) for f in Config.__struct_fields__)], ids=lambda kind: kind.__name__)
def test_every_key_of_the_configuration_is_documented(kind: type, generator: ModuleType) -> None:
    """Each part of `detent.toml` as well."""
    if issubclass(kind, msgspec.Struct):
        assert [name for name, meaning in generator.meanings(kind).items() if not meaning] == []


# Schemas ----------------------------------------------------------------------------------------------------------------------


def test_the_schemas_are_current(generator: ModuleType) -> None:
    """Each is what `scripts/docs.py` makes of the code as it is now, and there is no other."""
    made = {name: generator.as_json(schema) for name, schema in generator.schemas().items()}
    assert {file.name: file.read_text(encoding="utf-8") for file in SCHEMAS.iterdir()} == made, "run: python scripts/docs.py"


@pytest.mark.parametrize("kind", [("agent", AgentFile), ("detent", Config)], ids=lambda kind: kind[0])
def test_a_schema_has_the_keys_of_its_reader_with_their_documentation(kind: tuple[str, type], generator: ModuleType) -> None:
    """No key more, none less, each with a description."""
    name, struct = kind
    properties = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))["properties"]
    said = {key: meaning for key, meaning in generator.meanings(struct).items() if (struct.__name__, key) not in generator.NOT_IN_FILES}
    said = {key: said[key] or None for key in said}
    assert {key: schema.get("description") for key, schema in properties.items()} == said


def with_schemas() -> list[Path]:
    """The files among the examples, those that `init` writes too, of which there is a schema."""
    found = [*(ROOT / "examples").rglob("*.toml"), *(ROOT / "examples").rglob("*.yaml")]
    return sorted(file for file in found if (SCHEMAS / f"{file.stem}.json").exists())


@pytest.mark.parametrize("file", with_schemas(), ids=name_of)
def test_examples_fit_the_schemas_and_name_them(file: Path) -> None:
    """Each is valid, and its first line leads to its schema."""
    text = file.read_text(encoding="utf-8")
    data = tomllib.loads(text) if file.suffix == ".toml" else yaml.safe_load(text)
    place = (file.parent / text.split("\n", 1)[0].removeprefix("#:schema ").removeprefix("# yaml-language-server: $schema=")).resolve()
    assert place.parent == SCHEMAS and (place.stem == file.stem or (file.suffix, place.stem) == (".toml", "agent"))
    assert problems(place.stem, data) == []


@pytest.mark.parametrize(("page", "block"), WRITTEN, ids=lambda value: f"{value.line}" if isinstance(value, Block) else name_of(value))
def test_what_the_pages_show_fits_the_schemas(page: Path, block: Block) -> None:
    """Agent files, `detent.toml`, rules, and parts of them; other files are policies, suites, webhooks and package metadata."""
    if block.language == "yaml":
        data = yaml.safe_load(block.text)
        assert problems("rules", data if isinstance(data, list) else [data]) == []
        return
    data = tomllib.loads(block.text)
    agent, config = set(data) <= set(AgentFile.__struct_fields__), set(data) <= {*Config.__struct_fields__}
    if not agent and not config:
        suite = {*Suite.__struct_fields__}
        assert set(data) <= {*PolicyDocument.__struct_fields__, "project"} or set(data) <= suite or set(data) == {"webhook"}
        return
    found = [
        problems("agent", data, part="name" not in data) if agent else ["no agent file"],
        problems("detent", data) if config else ["no"],
    ]
    assert [] in found or not set(data) - set(PolicyDocument.__struct_fields__), found


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("agent", {"name": "a", "tool": ["glob"]}),
    ("agent", {"name": "a", "budget": {"iterations": 3}}),
    ("agent", {"name": "a", "model_settings": {"temprature": 1}}),
    ("agent", {"name": "a", "mcp": {"files": {"comand": "x"}}}),
    ("agent", {"name": "a", "grants": [{"sink": "a.b", "source": "c"}]}),
    ("detent", {"grants": [{"sink": "a.b", "sauce": "c"}]}),
    ("agent", {"name": "a", "rules": [{"name": "r", "anser": "x"}]}),
    ("agent", {"name": "a", "policy": [{"id": "r", "decision": "deny", "wen": "true"}]}),
    ("agent", {"name": "a", "wrap_up": "yes"}),
    ("agent", {"name": "a", "on_deny": "ignore"}),
    ("agent", {"name": "a", "tools": "glob"}),
    ("agent", {"name": "a", "actions": ["dance"]}),
    ("agent", {"name": "a", "deliverables": [{"file": "a", "section": "b"}]}),
    ("agent", {"instructions": "no name"}),
    ("detent", {"stor": "ram:"}),
    ("detent", {"store": {"uri": "ram:"}}),
    ("detent", {"worker": {"poll": 1}}),
    ("detent", {"models": {"limits": {"openai": {"concurent": 1}}}}),
    ("detent", {"tenants": {"acme": {"max_run": 1}}}),
    ("detent", {"limits": {"ceiling": "many"}}),
]


@pytest.mark.parametrize(("schema", "data"), WRONG, ids=lambda value: str(value)[:60])
def test_schema_and_reader_refuse_the_same(schema: str, data: dict[str, Any], tmp_path: Path) -> None:
    """An unknown key at any depth, a value of another type: an editor shows what the reader would refuse."""
    assert problems(schema, data)
    file = tmp_path / f"{schema}.toml"
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in data.items()), encoding="utf-8")
    with pytest.raises(ConfigError):
        (load_agent if schema == "agent" else load_config)(file)


RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("agent", {"name": "a", "policy": [{"id": "r", "tool": "x", "decision": "require_approval", "expires": "12h"}]}),
    ("agent", {"name": "a", "policy": {"default": "tiers", "rules": [{"id": "r", "decision": "deny"}]}}),
    ("agent", {"name": "a", "tools": ["f__*"], "mcp": {"f": {"command": "x", "env": {"A": "b", "K": {"env": "KEY"}}, "tools": ["t"]}}}),
    ("agent", {"name": "a", "budget": {"max_calls_of": {"fetch": 5}, "max_cost_usd": 1}}),
    ("agent", {"name": "a", "rules": [{"values": {"n": "1"}}, {"name": "r", "stop": "done"}, {"default": {"stop": "no rule fits"}}]}),
    ("agent", {"name": "a", "profile": {"tier": "auto"}, "output_schema": {"type": "object"}, "variables": {"x": [1, {"y": 2}]}}),
    ("detent", {"store": "ram:", "workspace": "."}),
    ("detent", {"store": {"url": "ram:"}, "policy": [{"id": "r", "decision": "deny"}], "tenants": {"*": {"max_runs": 1}}}),
    ("detent", {"models": {"prices": {"ollama:llama3.2": {"input_usd": 0, "output_usd": 0}}, "retries": {"base_s": 1}}}),
]


@pytest.mark.parametrize(("schema", "data"), RIGHT, ids=lambda value: str(value)[:60])
def test_schema_and_reader_accept_the_same(schema: str, data: dict[str, Any], tmp_path: Path) -> None:
    """Every form that a key may have."""
    assert problems(schema, data) == []
    file = tmp_path / f"{schema}.toml"
    file.write_text("".join(f"{key} = {toml(value)}\n" for key, value in data.items()), encoding="utf-8")
    (load_agent if schema == "agent" else load_config)(file)


def toml(value: Any) -> str:
    """Return a value as TOML writes it inline."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(toml(item) for item in value)}]" if isinstance(value, list) else json.dumps(value)


# Editors ----------------------------------------------------------------------------------------------------------------------


def test_a_file_names_the_schema_of_the_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a URL that an editor can open without a network; relative where the package is installed below the file."""
    assert schema_line(tmp_path / "agent.toml") == f"#:schema {(SCHEMAS / 'agent.json').as_uri()}\n"
    assert schema_line(tmp_path / "rules.yaml") == f"# yaml-language-server: $schema={(SCHEMAS / 'rules.json').as_uri()}\n"
    monkeypatch.setattr(schema_lines, "SCHEMAS", tmp_path / ".venv" / "schemas")
    assert schema_line(tmp_path / "detent.toml") == "#:schema ./.venv/schemas/detent.json\n"


def test_what_a_function_takes_is_found_without_its_signature() -> None:
    """The quick look at a function's code says that it fits exactly where `inspect.signature` says so, or leaves it to that."""

    class Called:
        def __call__(self, one: Any, two: Any = None) -> None: ...

    class Other(Called):
        __signature__ = inspect.signature(lambda one, two, three: None)

    def needs_a_name(one: Any, *, two: Any) -> None: ...

    def has_a_name(one: Any, *, two: Any = None) -> None: ...

    @functools.wraps(needs_a_name)
    def wraps(*args: Any) -> None: ...

    plain = [lambda: None, lambda one: None, lambda one, two=1: None, lambda *all_: None, needs_a_name, has_a_name, wraps]
    objects = [Called(), Called().__call__, Other(), Called, functools.partial(lambda one, two: None, 1), str.upper, len]
    for function, count in itertools.product([*plain, *objects], range(5)):
        try:
            inspect.signature(function).bind(*(None,) * count)
            fits = True
        except TypeError:
            fits = False
        assert (takes(function, count) == "") is fits, (function, count)
