"""The shape of the source, as DESIGN and STYLE have it: who imports whom, what is pure, how long things are.

import-linter checks the layers over whole chains of imports; this file checks what it cannot see: the standard library, calls, sizes,
names, and that every folder is covered by a contract at all.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from amounts import in_check
from real_time import WAITS_FOR
from source_code import PACKAGE, ROOT, SRC, TESTS, calls, code_lines, comment, imports, module_name, modules, of_type, tree, where

ADAPTERS = (
    *("strategies", "planners", "embedders", "tools", "meta_tools", "policies", "memories", "stores", "observers", "capabilities"),
    *("interpreters", "teams", "workers", "clock"),
)
NAMES_ADAPTERS = ("__init__", "__main__", "extend", "cli", "config", "engine", "server", "evals", "testing")
"""What may name a concrete adapter: the public names, and what puts parts together or tests them."""

PURE = {
    *("__future__", "abc", "base64", "binascii", "bisect", "collections", "contextlib", "copy", "dataclasses", "datetime", "decimal"),
    *("difflib", "enum", "fractions", "functools", "hashlib", "heapq", "hmac", "itertools", "json", "math", "numbers", "operator", "re"),
    *("statistics", "string", "struct", "textwrap", "types", "typing", "unicodedata", "weakref", "zlib"),
    "msgspec",
}
"""What core may import beside itself: no clock, no randomness, no files, no network, no threads, no event loop."""

NOT_IN_KERNEL = {"glob", "os", "pathlib", "random", "secrets", "shutil", "socket", "sqlite3", "subprocess", "tempfile", "uuid"}
"""Where a kernel or a strategy would read chance or the environment past the log (law 5)."""

NOW = {"now", "utcnow", "today", "time", "time_ns", "monotonic", "perf_counter"}
HEAVY = {
    *(
        "aiohttp",
        "anthropic",
        "cel",
        "click",
        "fastapi",
        "httpx",
        "jsonschema",
        "mcp",
        "openai",
        "opentelemetry",
        "prompt_toolkit",
        "psycopg",
    ),
    *(
        "pydantic",
        "pydantic_ai",
        "pydantic_core",
        "pygments",
        "referencing",
        "requests",
        "restate",
        "rich",
        "sse_starlette",
        "starlette",
        "typer",
        "uvicorn",
        "yaml",
    ),
}


def contract() -> list[str]:
    """Return the layers of the import contract as they are written, highest first."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (found,) = [c for c in config["tool"]["importlinter"]["contracts"] if c["id"] == "layers"]
    return found["layers"]


def layers() -> list[set[str]]:
    """Return the layers of the import contract, highest first, each as the set of its top-level modules."""
    return [set(re.findall(r"\w+", layer)) for layer in contract()]


def parts_of(name: str) -> tuple[str, str]:
    """Return the first two parts of a dotted name: `detent.stores.ram` gives `("detent", "stores")`."""
    first, second, *_ = [*name.split("."), "", ""]
    return first, second


def test_every_module_and_folder_is_placed_in_a_layer() -> None:
    """A new folder under the package stands in the import contract before it stands in the tree."""
    there = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p.is_dir() and any(p.rglob("*.py")))} - {"__init__"}
    assert there - set().union(*layers()) == set(), "place it in [tool.importlinter] of pyproject.toml, and in ADAPTERS if it is one"


def test_each_line_of_the_contracts_sets_its_rooms_apart() -> None:
    """Modules on one line never import each other (`|`, not `:`), and a folder of more than eight modules has a contract of its own."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    assert [layer for c in config if c["type"] == "layers" for layer in c["layers"] if ":" in layer] == []
    inside = {room for c in config for room in c.get("containers", ())}
    large = {
        sign.parent
        for sign in PACKAGE.rglob("__init__.py")
        if len({p.stem for p in sign.parent.glob("[!_]*") if p.suffix == ".py" or (p / "__init__.py").is_file()}) > 8
    }
    assert {module_name(folder / "__init__.py") for folder in large} - inside == set(), (
        "give it layers in [tool.importlinter] of pyproject.toml"
    )


def test_adapter_folders_stand_side_by_side_with_the_kernel() -> None:
    """The contract has the kernel and every adapter folder in one layer, above what they share and ports, and core is the lowest."""
    order = layers()
    assert order[-4:] == [{"kernel", *ADAPTERS}, {"expressions"}, {"ports"}, {"core", "version"}]


@in_check
def test_nothing_imports_upwards_or_sideways() -> None:
    """Each import goes to a lower layer or stays in its own folder; adapters never import each other or the kernel."""
    rank = {name: i for i, layer in enumerate(layers()) for name in layer}
    wrong = []
    for path in modules():
        _, mine = parts_of(module_name(path))
        for node, name in imports(path):
            root, theirs = parts_of(name)
            if root != "detent" or mine in ("", theirs) or not {mine, theirs} <= rank.keys():
                continue
            if rank[theirs] <= rank[mine]:
                wrong.append(f"{where(path, node)} imports {name}")
    assert wrong == []


@in_check
def test_only_what_puts_parts_together_names_an_adapter() -> None:
    """Kernel, ports and core work with whatever is behind the seam: they name no adapter, not even in a string to be imported."""
    wrong = []
    for path in modules():
        _, mine = parts_of(module_name(path))
        if (mine or "__init__") in NAMES_ADAPTERS or mine in ADAPTERS:
            continue
        named = [(node, name) for node, name in imports(path)]
        named += [(n, n.value) for n in of_type(path, ast.Constant) if isinstance(n.value, str) and " " not in n.value]
        wrong += [f"{where(path, node)} names {name}" for node, name in named if re.match(rf"detent\.({'|'.join(ADAPTERS)})\b", name)]
    assert wrong == []


def test_there_are_no_relative_imports() -> None:
    """Paths in imports, tracebacks and docs agree."""
    assert [where(p, node) for p in modules() for node, name in imports(p) if name.startswith(".")] == []


def test_the_core_imports_nothing_impure() -> None:
    """Law 8: `detent.core` imports itself, msgspec and the pure part of the standard library."""
    files = modules(PACKAGE / "core")
    assert files, "there is no core"
    wrong = []
    for path in files:
        for node, name in imports(path):
            if name.split(".")[0] not in PURE and not name.startswith("detent.core."):
                wrong.append(f"{where(path, node)} imports {name}")
    assert wrong == []


def test_the_core_does_nothing_but_compute() -> None:
    """Law 8: no call of a clock, of `open`, `print` or `input`, and nothing asynchronous."""
    wrong = []
    for path in modules(PACKAGE / "core"):
        wrong += [
            f"{where(path, n)} calls {name}" for n, name in calls(path) if name in ("open", "print", "input", "exec", "eval", "__import__")
        ]
        wrong += [f"{where(path, n)} reads a clock: {name}" for n, name in calls(path) if "." in name and name.split(".")[-1] in NOW]
        kinds = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
        wrong += [f"{where(path, n)} is asynchronous" for n in of_type(path, *kinds)]
    assert wrong == []


def test_kernel_and_strategies_read_no_clock_chance_or_environment() -> None:
    """Law 5: they see time, chance and the world through ports and recorded values.

    `time.perf_counter` is the exception: it measures how long a call took, which is recorded and which nothing is decided from.
    """
    wrong = []
    for path in modules(PACKAGE / "kernel", PACKAGE / "strategies"):
        for node, name in imports(path):
            if name.split(".")[0] in NOT_IN_KERNEL or name.startswith("time."):
                wrong.append(f"{where(path, node)} imports {name}")
        for node, name in calls(path):
            before, _, last = name.rpartition(".")
            clock = before.split(".")[-1] in ("datetime", "date", "time") and last in NOW and name != "time.perf_counter"
            if clock or name in ("open", "time.sleep"):
                wrong.append(f"{where(path, node)} calls {name}")
    assert wrong == []


def test_strategies_are_small_and_have_no_loop_over_tool_calls() -> None:
    """The runner is the only loop (DESIGN 6): no `while` in a strategy, no planner input of its own, no module over 150 lines."""
    wrong = []
    for path in modules(PACKAGE / "strategies"):
        wrong += [f"{where(path, node)} loops" for node in of_type(path, ast.While)]
        wrong += [
            f"{where(path, node)} makes {name}" for node, name in calls(path) if name.split(".")[-1] in ("View", "KernelInput", "Plan")
        ]
        wrong += [f"{path.name} has {code_lines(path)} lines"] if code_lines(path) > 150 else []
    assert wrong == []


def test_a_run_is_ended_in_one_place() -> None:
    """Law 6: one function makes the end of a run, and one place asks it to; every other way to end goes through there."""
    made = [
        path.name for path in modules() for _, name in calls(path) if name.split(".")[-1] == "RunFinished" and "testing" not in path.parts
    ]
    asked = [path.name for path in modules() for _, name in calls(path) if name == "finish"]
    assert (made, asked) == (["endings.py"], ["driving.py"])


GROWING = ("core/events.py", "core/actions.py", "core/errors.py")
"""What grows with the number of things that can happen, and is left out of the limit."""


def test_core_and_kernel_stay_small(capsys: pytest.CaptureFixture[str]) -> None:
    """At most 2,600 lines of code together without what only lists what can happen: who reads them knows what a run is."""
    sizes = {path.relative_to(PACKAGE).as_posix(): code_lines(path) for path in modules(PACKAGE / "core", PACKAGE / "kernel")}
    whole = sum(sizes.values())
    counted = whole - sum(sizes[path] for path in GROWING)
    longest = ", ".join(f"{path} {n}" for path, n in sorted(sizes.items(), key=lambda item: -item[1]) if path not in GROWING)
    said = f"core and kernel: {whole:,} lines of code; {counted:,} without {', '.join(GROWING)} (limit 2,600)"
    with capsys.disabled():
        print(f"\n{said}")
    assert counted <= 2_600, f"{said}; push something out to a seam. By length: {longest}"


LONG = {"core/events.py", "core/fold.py"}
"""The closed list of what can happen, and what each does to the state: one line after the other, and no part without the rest."""


@in_check
def test_no_file_has_more_than_500_lines_and_no_class_more_than_300() -> None:
    """What is longer holds two things."""
    found: dict[str, int] = {}
    for path in modules():
        name = path.relative_to(PACKAGE).as_posix()
        if len(path.read_text(encoding="utf-8").splitlines()) > 500:
            found[name] = len(path.read_text(encoding="utf-8").splitlines())
        for node in [n for n in ast.walk(tree(path)) if isinstance(n, ast.ClassDef)]:
            if (long := (node.end_lineno or 0) - node.lineno + 1) > 300:
                found[f"{name} {node.name}"] = long
    assert {name: long for name, long in found.items() if name not in LONG} == {}, "cut it along what it does"


def test_the_runner_stays_smaller_still() -> None:
    """Under 250 lines of code, counted in the same way: who reads it once knows what drives a run."""
    assert code_lines(PACKAGE / "kernel" / "runner.py") < 250


def test_a_line_counts_when_it_holds_code(tmp_path: Path) -> None:
    """The count is that of statements as they are written: no blank line, comment or docstring, every line of a long expression."""
    sample = tmp_path / "sample.py"
    sample.write_text('"""Doc.\n\nMore.\n"""\n\n# why\nx = [\n    1,  # one\n]\n\n\ndef f():\n    """Doc."""\n    return """a\nb"""\n')
    assert code_lines(sample) == 6


def test_modules_are_named_after_what_is_inside() -> None:
    """No module says only that it holds things."""
    vague = {"utils", "util", "helpers", "helper", "common", "base", "manager", "managers", "types", "misc", "shared", "core_utils", "lib"}
    assert [where(p) for p in modules() if {p.stem, p.parent.name} & vague] == []


@pytest.mark.parametrize("place", [PACKAGE, TESTS, ROOT / "examples", ROOT / "benchmarks", ROOT / "scripts"], ids=lambda p: p.name)
def test_every_module_begins_with_what_it_is_for(place: Path) -> None:
    """The first statement of a module is its docstring."""
    beginning = re.compile(r'(#.*\n|\s)*r?"{3}\s*\S')
    assert [where(p) for p in modules(place) if not beginning.match(p.read_text(encoding="utf-8"))] == []


def handled(module: ast.Module) -> set[str]:
    """Return the class names that are compared by type, or have a `case` doing something: one that only raises hands the event to nobody."""
    compared = [n for n in ast.walk(module) if isinstance(n, ast.Compare) and isinstance(n.ops[0], ast.Is)]
    names = {ast.unparse(n.comparators[0]).split(".")[-1] for n in compared if ast.unparse(n.left) == "type(event)"}
    for case in [n for n in ast.walk(module) if isinstance(n, ast.match_case)]:
        if all(isinstance(step, ast.Raise) for step in case.body):
            continue
        for pattern in ast.walk(case.pattern):
            if isinstance(pattern, ast.MatchClass):
                names.add(ast.unparse(pattern.cls).split(".")[-1])
    return names


def test_every_event_is_in_the_union() -> None:
    """The union is closed: a class that derives from `Event` is in it, and nothing else."""
    from detent.core import events

    classes = {c for c in vars(events).values() if isinstance(c, type) and issubclass(c, events.Event) and c is not events.Event}
    assert set(get_args(events.AnyEvent)) == classes
    assert set(events.INPUTS) <= classes


def test_every_action_is_in_the_union() -> None:
    """The union is closed: a class that derives from `Action` is in it, and nothing else."""
    from detent.core import actions

    classes = {c for c in vars(actions).values() if isinstance(c, type) and issubclass(c, actions.Action) and c is not actions.Action}
    assert set(get_args(actions.AnyAction)) == classes


def test_every_event_is_folded() -> None:
    """The fold has a place for every event; none is dropped in silence."""
    from detent.core import events

    assert {c.__name__ for c in get_args(events.AnyEvent)} - handled(tree(PACKAGE / "core" / "fold.py")) == set()


def in_a_fresh_process(code: str) -> Any:
    """Run `code` in a new interpreter and return the JSON that it prints last."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=SRC)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", ["detent", "detent.ports"])
def test_importing_the_package_loads_nothing_heavy(name: str) -> None:
    """All public names are light: no validation library, expression language, command line, server or vendor SDK."""
    loaded = in_a_fresh_process(f"import json, sys\nfrom {name} import *\nprint(json.dumps(sorted(sys.modules)))")
    assert {n.split(".")[0] for n in loaded} & HEAVY == set()
    assert [n for n in loaded if n.startswith(("detent.cli", "detent.server", "detent.testing"))] == []


def test_an_expression_loads_no_command_line() -> None:
    """The library's own, which it imports, would make every command whose rules or policies have conditions start a third of a second later."""
    program = "import json, sys\nfrom detent.expressions.compiled import cel\ncel()\n"
    loaded = in_a_fresh_process(f"{program}print(json.dumps(sorted(sys.modules)))")
    assert "cel" in loaded
    assert {n.split(".")[0] for n in loaded} & {"prompt_toolkit", "typer", "rich"} == set()
    assert in_a_fresh_process(f"{program}from cel import cli\nprint(json.dumps(hasattr(cli, 'main')))") is False, "it stays out of the way"


def test_a_run_without_memory_and_compaction_loads_neither() -> None:
    """Every program would start later, for what its agents do not use."""
    program = (
        "import json, sys\nfrom detent import Agent, Engine, FinalAnswer, Plan\n"
        "class Says:\n    async def plan(self, view):\n        return Plan(actions=(FinalAnswer(content='done'),))\n"
        "assert Engine(store='ram:', planner=Says()).run_sync(Agent(name='a'), 'go').output == 'done'\n"
    )
    loaded = in_a_fresh_process(f"{program}print(json.dumps(sorted(sys.modules)))")
    heavy = ("detent.history.memory", "detent.memories.ram", "detent.memories.sqlite", "detent.memories.files", "detent.memories.postgres")
    used = ("detent.memories.compactors", "detent.running.compacting", "detent.running.reducing", "detent.running.recalling")
    assert [n for n in loaded if n.startswith((*heavy, *used))] == []


def test_every_public_name_can_be_imported_and_is_described() -> None:
    """What `detent.__all__` promises is there and says what it is; the list holds no name twice."""
    import detent

    names = list(detent.__all__)
    assert names
    assert len(set(names)) == len(names)
    missing = [n for n in names if not hasattr(detent, n)]
    assert missing == []
    silent = [n for n in names if callable(getattr(detent, n)) and not (getattr(detent, n).__doc__ or "").strip()]
    assert silent == []


def reason(path: Path, node: ast.AST) -> bool:
    """Say whether the line of `node` ends with a comment in words, beside what it tells the tools."""
    said = re.sub(r"(noqa:\s*)?\b[A-Z]+\d+\b,?|pragma: no cover|type: ignore(\[.*?\])?", "", comment(path, getattr(node, "lineno", 0)))
    return len(re.findall(r"[a-z]{2,}", said)) >= 2


@in_check
def test_a_broad_except_says_why() -> None:
    """`except Exception` stands only around foreign code and in the worker loop, with the reason on its line.

    One that tidies up and raises the same exception again swallows nothing and needs none.
    """
    wrong = []
    broad = re.compile(r"\bexcept\b(\s*:|[^:]*Exception)")
    for path in [path for path in modules(PACKAGE, TESTS) if broad.search(path.read_text(encoding="utf-8"))]:
        for node in of_type(path, ast.ExceptHandler):
            if ast.unparse(node.body[-1]) == "raise":
                continue
            caught = [] if node.type is None else node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if caught and not {"Exception", "BaseException"} & {ast.unparse(c).split(".")[-1] for c in caught}:
                continue
            if not reason(path, node):
                wrong.append(where(path, node))
    assert wrong == [], "say on the line of the `except` whose failures are caught there and why"


def test_nothing_is_mocked() -> None:
    """Fakes, not mocks."""
    mocks = ("unittest.mock", "mock.", "pytest_mock")
    every = [(p, node, name) for p in modules(PACKAGE, TESTS) if "mock" in p.read_text(encoding="utf-8") for node, name in imports(p)]
    assert [f"{where(p, node)} imports {name}" for p, node, name in every if name == "mock" or name.startswith(mocks)] == []


@in_check
def test_nothing_sleeps_to_synchronise() -> None:
    """A wait is for the thing itself. Tests never call `time.sleep`; the package only where a comment on the line says what it polls."""
    wrong = []
    for path in [path for path in modules(PACKAGE, TESTS) if "sleep" in path.read_text(encoding="utf-8")]:
        wrong += [f"{where(path, node)} imports {name}" for node, name in imports(path) if name == "time.sleep"]
        for node, name in calls(path):
            if name == "time.sleep" and (TESTS in path.parents or not reason(path, node)):
                wrong.append(f"{where(path, node)} calls {name}")
    assert wrong == []


def test_a_limit_that_has_to_run_out_in_real_time_is_listed() -> None:
    """A test of a limit costs the seconds that it is about, and fails on a slow machine. Where the loop alone decides, time is virtual."""
    short = re.compile(r"(timeout|patience|grace|pattern|wait|running|total|refused|poll)_s=0?\.\d*[1-9]")
    limits = {str(path.relative_to(TESTS)) for path in modules(TESTS) if short.search(path.read_text(encoding="utf-8"))}
    virtual = re.compile(r"import virtual_time|from kernel.runs import .*\b(ran|run_async)\b")
    real = {name for name in limits if not virtual.search((TESTS / name).read_text(encoding="utf-8"))}
    assert real - set(WAITS_FOR) == set(), "run it in virtual time, or say in tests/real_time.py what it waits for"
    assert set(WAITS_FOR) - limits == set(), "these wait no longer"


@cache
def overridden(owner: str) -> set[str]:
    """Return the methods of a class that a subclass, in the package or in its tests, gives a body of its own."""
    found: set[str] = set()
    heirs = [path for path in modules(PACKAGE, TESTS) if owner in path.read_text(encoding="utf-8")]
    for node in [n for path in heirs for n in of_type(path, ast.ClassDef)]:
        if owner in [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]:
            found.update(step.name for step in node.body if isinstance(step, ast.FunctionDef | ast.AsyncFunctionDef))
    return found


def missing_bodies(path: Path) -> list[ast.AST]:
    """Return the functions whose whole body is `raise NotImplementedError`, unless a subclass overrides them."""
    found: list[ast.AST] = []
    if "NotImplementedError" not in path.read_text(encoding="utf-8"):
        return found
    for owner in ast.walk(tree(path)):
        for node in ast.iter_child_nodes(owner):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not isinstance(last := node.body[-1], ast.Raise):
                continue
            if not any(isinstance(part, ast.Name) and part.id == "NotImplementedError" for part in ast.walk(last)):
                continue
            doing = [step for step in node.body[:-1] if not (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))]
            if not doing and node.name not in overridden(getattr(owner, "name", "") or "-"):
                found.append(node)
    return found


@in_check
def test_nothing_is_left_for_later() -> None:
    """No marker of unfinished work stands in the source, and no function whose whole body says that it is missing."""
    wrong = [where(path, node) for path in modules() for node in missing_bodies(path)]
    for path in modules():
        text = path.read_text(encoding="utf-8")
        wrong += [
            f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, m.start()) + 1}" for m in re.finditer(r"\b(TODO|FIXME|XXX|HACK)\b", text)
        ]
    assert wrong == []


def test_observers_handlers_and_hooks_are_called_in_one_place() -> None:
    """`ports.telling` alone knows the order, what becomes of a failure, and how long somebody is awaited."""
    asks = {path.relative_to(PACKAGE).as_posix() for path in modules() for _, name in calls(path) if name == "PATIENCE.get"}
    assert asks == {"ports/telling.py"}


@in_check
def test_one_module_knows_what_checks_json_schemas() -> None:
    """`expressions.json_schema` alone: so every check fetches nothing and is bounded."""
    library = re.compile(r"(jsonschema|jsonschema_specifications|referencing)\b")
    knows = {p for p in modules() for _, name in imports(p) if library.match(name)}
    knows |= {
        p
        for p in modules()
        for n in ast.walk(tree(p))
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and library.fullmatch(n.value.split(".")[0])
    }
    assert {p.relative_to(PACKAGE).as_posix() for p in knows} == {"expressions/json_schema.py"}


def test_every_room_says_what_it_is_for_and_where_to_start() -> None:
    """The docstring of a folder: what it is for, its rule, the file to start with; and the files that it names are there."""
    wrong = []
    for sign in PACKAGE.rglob("__init__.py"):
        said = ast.get_docstring(tree(sign)) or ""
        if sign.parent != PACKAGE and not ("Rule: " in said and re.search(r"^Start with ", said, re.MULTILINE)):
            wrong.append(where(sign))
        start = re.search(r"^Start with `(\w+)`", said, re.MULTILINE)
        if start and not list(sign.parent.glob(f"{start[1]}*")):
            wrong.append(f"{where(sign)} starts with {start[1]}, which is not there")
    assert wrong == []
