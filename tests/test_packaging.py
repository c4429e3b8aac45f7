"""What pip, type checkers and other programs rely on: metadata, entry points, dependencies that are declared, files that ship."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from typing import Any

import pytest

from amounts import PROFILE, crossed, in_check, thinned
from source_code import PACKAGE, ROOT, TESTS, imports, modules, where

CONTRACT = ROOT.parent / "shared" / "contract" / "test_public_contract.py"
PROVIDES = {
    "common-expression-language": "cel",
    "import-linter": "importlinter",
    "opentelemetry-api": "opentelemetry",
    "opentelemetry-sdk": "opentelemetry",
    "pydantic-ai-slim": "pydantic_ai",
    "ag-ui-protocol": "ag_ui",
    "pyjwt": "jwt",
    "pytest-xdist": "xdist",
    "pyyaml": "yaml",
    "restate-sdk": "restate",
}
"""Distributions whose import name is another."""

COMES_WITH = {
    "anyio": "mcp",
    "mcp_types": "mcp",
    "cryptography": "mcp",
    "genai_prices": "pydantic_ai",
    "boto3": "pydantic_ai",
    "botocore": "pydantic_ai",
    "openai": "pydantic_ai",
    "mistralai": "pydantic_ai",
    "psycopg_pool": "psycopg",
    "referencing": "jsonschema",
    "jsonschema_specifications": "jsonschema",
    "markdown_it": "rich",
    "pydantic_core": "pydantic",
    "typing_extensions": "pydantic",
}
"""Modules that a dependency is bound to bring, being part of what it takes and returns."""


def project() -> dict[str, Any]:
    """Return the `[project]` table."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def import_name(requirement: str) -> str:
    """Return what a requirement gives to import: `pyyaml>=6` gives `yaml`."""
    name = re.split(r"[\[<>=!~;\s]", requirement, maxsplit=1)[0].lower()
    return PROVIDES.get(name, name.replace("-", "_"))


def test_the_command_is_there() -> None:
    """`detent` on the command line is a function that can be imported and called."""
    module, _, function = project()["scripts"]["detent"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_dependencies_have_a_lower_bound_and_no_upper_one() -> None:
    """A floor with a reason beside it; nothing keeps a user from a newer version. Checkers of our own code are exact: each release finds something else."""
    lists = [project()["dependencies"], *project()["optional-dependencies"].values()]
    every = [r for listed in lists for r in listed if not r.startswith("detent[")]
    checkers = r"(pyright\[nodejs\]|ruff)==[\w.]+"
    assert [r for r in every if not re.fullmatch(rf"[\w.\[\],-]+>=[\w.]+|{checkers}", r)] == []
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    bare = [line for line in text.splitlines() if re.match(r'\s+"[\w.\[\]-]+>=', line) and "#" not in line]
    assert bare == [], "say beside each lower bound why it is that one"


def test_what_the_package_imports_is_declared() -> None:
    """Every third-party module that the source names belongs to a dependency or to an extra that is not `dev`.

    What tests need is named only where the package helps to test.
    """
    extras = [r for name, listed in project()["optional-dependencies"].items() if name != "dev" for r in listed]
    declared = {import_name(r) for r in [*project()["dependencies"], *extras]} | {"detent"}
    known = declared | set(sys.stdlib_module_names) | {name for name, owner in COMES_WITH.items() if owner in declared}
    named = [(p, node, name) for p in modules() for node, name in imports(p)]
    assert [f"{where(p, node)} imports {name}" for p, node, name in named if name.split(".")[0] not in known] == []
    tests = {import_name(r) for r in project()["optional-dependencies"]["testing"]}
    helps = PACKAGE / "evals" / "plugin.py"
    outside = [(p, node, name) for p, node, name in named if PACKAGE / "testing" not in p.parents and p != helps]
    assert [f"{where(p, node)} imports {name}" for p, node, name in outside if name.split(".")[0] in tests] == []


@in_check
def test_what_the_tests_import_is_declared() -> None:
    """`pip install '.[dev]'` is enough to run them."""
    every = [*project()["dependencies"], *(r for listed in project()["optional-dependencies"].values() for r in listed)]
    own = {p.stem for folder in (TESTS, ROOT / "scripts") for p in folder.glob("*.py")} | {p.name for p in TESTS.iterdir() if p.is_dir()}
    declared = {import_name(r) for r in every}
    brought = {name for name, owner in COMES_WITH.items() if owner in declared}
    known = declared | brought | {"detent", "tests"} | own | set(sys.stdlib_module_names)
    wrong = [f"{where(p, node)} imports {name}" for p in modules(TESTS) for node, name in imports(p) if name.split(".")[0] not in known]
    assert wrong == []


def test_the_package_ships_its_types_and_its_licence() -> None:
    """Type checkers look for `py.typed`; the licence is the one that the metadata names."""
    assert (PACKAGE / "py.typed").is_file()
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert project()["license"] == "Apache-2.0"
    assert "Apache License" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


def test_the_changelog_has_an_entry_for_this_version() -> None:
    """The version of the metadata is the newest one that the changelog describes."""
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert headings[:1] == [project()["version"]]


def test_the_version_is_said_once() -> None:
    """What `detent.__version__` says, where it is there, is what the metadata says."""
    import detent

    assert getattr(detent, "__version__", project()["version"]) == project()["version"]


THREADS = """
import itertools, sys, threading, time
import detent
seen, failed, ready = [], [], threading.Barrier(len(detent._MODULES))

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("detent."):
            seen.append(threading.get_ident())
            time.sleep(0)

def ask(name):
    ready.wait()
    try:
        getattr(detent, name)
    except BaseException as error:
        failed.append(f"{name}: {error!r}")

sys.meta_path.insert(0, Slow())
threads = [threading.Thread(target=ask, args=(name,)) for name in detent._MODULES]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
order = [one for one, _ in itertools.groupby(seen)]
print(failed, len(order) == len(set(order)))
"""


def test_threads_that_ask_for_public_names_at_once_load_them_one_after_the_other() -> None:
    """Else they meet each other's half-loaded modules, and the first use of the package fails now and then."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(ROOT / "src")}
    )
    assert done.stdout == "[] True\n"


@pytest.mark.skipif(not CONTRACT.is_file(), reason="the contract does not lie beside this checkout; the copy runs all the same")
def test_the_contract_is_copied_byte_for_byte() -> None:
    """The tests in `tests/contract` are the contract that other programs are written against, unchanged."""
    assert (TESTS / "contract" / CONTRACT.name).read_bytes() == CONTRACT.read_bytes()


@pytest.mark.parametrize("script", ["scripts/check", ".ci/run"])
def test_the_scripts_run_as_they_are(script: str) -> None:
    """They are executable, and bash reads them without an error."""
    path = ROOT / script
    assert os.access(path, os.X_OK)
    bash = shutil.which("bash")
    assert bash is not None
    checked = subprocess.run([bash, "-n", str(path)], capture_output=True, text=True, timeout=30, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_machine_where_postgresql_cannot_be_installed_is_checked_all_the_same() -> None:
    """The tests of its store are skipped, and that is said; `set -e` would end everything there."""
    step = (ROOT / ".ci" / "run").read_text(encoding="utf-8").partition("\npostgresql() {\n")[2].partition("\n}\n")[0]
    bare = 'command() { [ "$2" = apt-get ]; }; compgen() { false; }; id() { echo 0; }; apt-get() { return 100; }'
    source = f"set -euo pipefail\n{bare}\npostgresql() {{\n{step}\n}}\npostgresql\necho goes on"
    done = subprocess.run(["bash", "-c", source], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (0, "goes on\n") and "will be SKIPPED" in done.stderr


def test_the_scripts_name_no_registry() -> None:
    """Where packages come from is the business of pip's own settings."""
    files = [ROOT / "scripts" / "check", ROOT / ".ci" / "run", ROOT / "pyproject.toml"]
    assert [f.name for f in files if re.search(r"pypi|npmjs|index-url|find-links|--registry", f.read_text(encoding="utf-8"))] == []


def test_the_scripts_name_modules_that_are_there() -> None:
    """What the shell scripts import is not seen by a linter."""
    named = {
        name
        for script in ("scripts/check", ".ci/run")
        for name in re.findall(r"(?:from|import) (detent(?:\.[a-z_]+)+)", (ROOT / script).read_text(encoding="utf-8"))
    }
    files = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in PACKAGE.rglob("*.py")}
    assert {name for name in named if not any(name == file or name.startswith(f"{file}.") for file in files)} == set()


@in_check
@pytest.mark.parametrize(("profile", "points", "often"), [("default", 4, 10), ("many", 16, 100), ("soak", 50, 500)])
def test_each_profile_tries_more_than_the_one_before_it(profile: str, points: int, often: int) -> None:
    """A sample by default, more in the check, every point in the soak."""
    program = "from amounts import sampled, times; print(len(sampled(range(50), few=4)), times(100))"
    environment = {**os.environ, "HYPOTHESIS_PROFILE": profile, "PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [str(points), str(often)]


def test_the_check_and_the_soak_ask_for_their_profiles() -> None:
    """Without them every run would be a sample."""
    assert "export HYPOTHESIS_PROFILE=${HYPOTHESIS_PROFILE:-many}" in (ROOT / "scripts" / "check").read_text(encoding="utf-8")
    assert '"HYPOTHESIS_PROFILE": "soak"' in (ROOT / "scripts" / "soak").read_text(encoding="utf-8")


@pytest.mark.parametrize("one", ["a", "b", "c"])
@pytest.mark.parametrize("other", range(4))
@crossed
def test_each_value_of_each_parameter_is_tried(one: str, other: int, request: pytest.FixtureRequest) -> None:
    """A test that is `crossed` leaves out combinations and no value: else something that holds by promise would be tried by nobody."""
    items = [item for item in request.session.items if item.nodeid.partition("[")[0] == request.node.nodeid.partition("[")[0]]
    tried = {(item.callspec.params["one"], item.callspec.params["other"]) for item in items if isinstance(item, pytest.Function)}
    assert (one, other) in tried
    if len(tried) > 1:
        assert len(tried) == (4 if PROFILE == "default" else 12)
        assert ({pair[0] for pair in tried}, {pair[1] for pair in tried}) == ({"a", "b", "c"}, set(range(4)))


@pytest.mark.parametrize("subject", range(9))
@thinned
def test_a_third_of_the_subjects_is_tried_by_default_and_all_of_them_in_the_check(subject: int, request: pytest.FixtureRequest) -> None:
    """A test that is `thinned` leaves out too much, or nothing."""
    items = [item for item in request.session.items if item.nodeid.partition("[")[0] == request.node.nodeid.partition("[")[0]]
    tried = {item.callspec.params["subject"] for item in items if isinstance(item, pytest.Function)}
    assert subject in tried
    assert len(tried) in {1, 3 if PROFILE == "default" else 9}
