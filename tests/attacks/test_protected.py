"""Attacks on the files that govern: an agent writes what decides about it, or what runs when a person goes on working in its directory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amounts import thinned
from detent import Agent, Engine, FinalAnswer, ToolCall, WorkspaceConfig
from detent.cli.main import run as detent
from detent.config.loading import load_agent, load_config
from detent.core.errors import ConfigError, ToolFailed
from detent.planners import load_rules
from detent.policies import TieredPolicy
from detent.policies.documents import load_policy
from detent.ports.governing_files import governs
from detent.testing import ScriptedPlanner
from detent.tools.workspace import files, patch
from detent.tools.workspace import sandbox as boxes
from detent.tools.workspace.confine import Workspace
from detent.tools.workspace.process import Executed, execute
from detent.tools.workspace.sandbox import Sandbox
from detent.tools.workspace.skills import read_skill, skills_in

pytestmark = thinned

WHY_NOT = boxes.probe().why
sandboxed = pytest.mark.skipif(bool(WHY_NOT), reason=f"there is no sandbox here: {WHY_NOT}")

NAMES = (
    *("detent.toml", "sub/detent.toml", "agent.toml", ".detent/runs.db", ".git", ".git/config", ".git/hooks/pre-commit", "sub/.git/config"),
    *(
        ".gitmodules",
        ".husky/pre-commit",
        ".pre-commit-config.yaml",
        ".envrc",
        "sub/.envrc",
        ".bashrc",
        ".profile",
        ".zshrc",
        ".ssh/config",
    ),
    *(
        ".vscode/tasks.json",
        ".idea/workspace.xml",
        ".exrc",
        ".nvim.lua",
        ".dir-locals.el",
        "x.code-workspace",
        ".devcontainer/devcontainer.json",
    ),
    *(".github/workflows/ci.yml", ".gitlab-ci.yml", ".circleci/config.yml", ".ci/run.sh", "Jenkinsfile", "azure-pipelines.yml"),
    *(
        "HEAD",
        "docs/HEAD",
        "lefthook-local.yml",
        ".lefthook-local.yml",
        ".overcommit.yml",
        "mise.local.toml",
        ".mise.local.toml",
        ".mise/config.toml",
    ),
    *(
        ".helix/languages.toml",
        "a.sublime-project",
        ".config/nvim/init.lua",
        ".gdbinit",
        ".lldbinit",
        "opencode.json",
        "opencode.jsonc",
        ".rules",
    ),
    *(".trae/rules/x.md", ".augment-guidelines", ".crush.json"),
    *("AGENTS.md", "docs/AGENTS.md", "CLAUDE.md", ".claude/settings.json", ".cursorrules", "skills/x/SKILL.md", "MEMORY.md", "pyvenv.cfg"),
)
SPELLINGS = (
    *(
        ".GIT/config",
        ".Git/Hooks/x",
        "./.git/./config",
        ".git//config",
        ".g\u200cit/config",
        "\uff0egit/config",
        "GIT~1/config",
        ".git./config",
    ),
    *("Detent.toml", "DETENT.TOML", "detent.toml ", "de\uff54ent.toml", "agents.MD", "JENKINSFILE", "docs/Head", ".VSCode/tasks.json"),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    return tmp_path / "work"


def written(root: Path, path: str, **options: Any) -> str:
    """Try to write a file with every tool that writes; return the codes of the refusals."""
    workspace = Workspace(root, allow_delete=True, **options)
    tries = (
        lambda: files.write_file(workspace, path, "evil", force=True),
        lambda: files.create_file(workspace, path, "evil"),
        lambda: files.append_file(workspace, path, "evil"),
        lambda: files.replace_in_file(workspace, path, "old", "evil"),
        lambda: patch.apply_patch(workspace, f"*** Begin Patch\n*** Add File: {path}\n+evil\n*** End Patch"),
        lambda: patch.apply_patch(workspace, f"*** Begin Patch\n*** Delete File: {path}\n*** End Patch"),
    )
    codes: list[str] = []
    for attempt in tries:
        try:
            attempt()
            codes.append("WRITTEN")
        except ToolFailed as error:
            codes.append(error.error_code)
    return " ".join(sorted(set(codes)))


def tree(root: Path) -> dict[str, str]:
    """Return every file and directory of a tree with its content."""
    return {str(path.relative_to(root)): path.read_text() if path.is_file() else "/" for path in sorted(root.rglob("*"))}


# The tools that write files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*NAMES, *SPELLINGS])
def test_a_file_that_governs_is_written(root: Path, path: str) -> None:
    """A tool writes, creates, appends to, edits or removes a file that governs, under its name or one that some file systems take for it."""
    before = tree(root)
    assert written(root, path) == "protected_path"
    assert tree(root) == before, "not even directories are made on the way"


def test_a_model_with_write_file_makes_a_tool_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A model that has only `write_file` writes detent.toml, its agent, its rules and an imported tool file: code at the next command."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_tools.py").write_text(
        "from detent import tool\n\n\n@tool(side_effect='read')\ndef look() -> str:\n    '''Look.'''\n    return 'x'\n"
    )
    paths = (
        "detent.toml",
        "agent.toml",
        "mine.toml",
        "plan.yaml",
        "own_tools.py",
        "house.toml",
        "skills/s/SKILL.md",
        "skills/new/x.md",
        "fine.txt",
    )
    calls = "".join(
        f"- name: w{n}\n  call: {{tool: write_file, args: {{path: {p}, content: evil, force: true}}}}\n" for n, p in enumerate(paths)
    )
    (tmp_path / "plan.yaml").write_text(f"{calls}- name: end\n  answer: done\n")
    (tmp_path / "house.toml").write_text('[tiers]\nwrite = "allow"\n')
    (tmp_path / "skills" / "s").mkdir(parents=True)
    (tmp_path / "skills" / "s" / "SKILL.md").write_text("---\nname: s\ndescription: x\n---\ny\n")
    (tmp_path / "mine.toml").write_text(
        'name = "m"\ntools = ["write_file", "./own_tools.py:look"]\nrules = "plan.yaml"\npolicy = "house.toml"\nskills = ["skills"]\n'
        "[budget]\nmax_failed_turns = 50\n"
    )
    before = tree(tmp_path)
    monkeypatch.setenv("DETENT_TRUST", str(tmp_path))
    detent(["run", "--agent", "mine.toml", "--store", f"sqlite:///{tmp_path.parent}/runs-{tmp_path.name}.db", "Go"])
    capsys.readouterr()
    after = tree(tmp_path)
    assert after.pop("fine.txt") == "evil"
    assert after == before


SKILL = "---\nname: {}\ndescription: x\n---\ny\n"


def read_configuration(file: Path) -> None:
    (file.parent / "house.conf").write_text(f'agents = {{a = "{file.name}"}}\n')
    load_config(file.parent / "house.conf")


def read_folder(file: Path) -> None:
    (file.parent / "it").mkdir()
    (file.parent / "it" / "SKILL.md").write_text(SKILL.format("it"))
    skills_in(file.parent)


READ: dict[str, tuple[str, str, Callable[[Path], Any]]] = {
    "an agent file": ("its.toml", 'name = "a"\n', load_agent),
    "an agent file that a configuration names": ("its.toml", 'name = "a"\n', read_configuration),
    "a configuration": ("house.conf", "", load_config),
    "a policy": ("house.toml", '[tiers]\nwrite = "deny"\n', load_policy),
    "rules": ("plan.yaml", "- name: end\n  answer: done\n", load_rules),
    "a skill": ("to/more.txt", "x", lambda file: (file.with_name("SKILL.md").write_text(SKILL.format("to")), read_skill(file.parent))),
    "a folder of skills": ("new/more.txt", "x", read_folder),
}
"""What a program reads without trust, which is for directories: a file, its content, and how it is read."""


@pytest.mark.parametrize("what", READ)
def test_what_a_program_has_read_is_written(root: Path, what: str) -> None:
    """A tool writes a file that no name marks, and by which the program that reads it is governed from then on."""
    name, content, read = READ[what]
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text(content)
    read(root / name)
    assert written(root, name) == "protected_path"


@pytest.mark.parametrize("path", ["lib.py", "package/inner.py"])
def test_a_module_that_was_imported_is_rewritten(root: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """A tool rewrites a module of the workspace that this process has imported, such as a sibling of a tool file."""
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text("x = 1\n")
    monkeypatch.syspath_prepend(str((root / path).parent))
    name = Path(path).stem
    monkeypatch.delitem(sys.modules, name, raising=False)
    __import__(name)
    try:
        assert written(root, path) == "protected_path"
    finally:
        del sys.modules[name]


def test_a_virtual_environment_is_changed(root: Path) -> None:
    """A tool writes a program, or a .pth file that runs code, into a virtual environment."""
    (root / "env" / "bin").mkdir(parents=True)
    (root / "env" / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for path in ("env/bin/python", "env/lib/python3.11/site-packages/evil.pth", "env/new", "env/bin/x"):
        assert written(root, path) == "protected_path", path
    (root / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert written(root, "bin/python") == written(root, "lib/x.pth") == "protected_path"
    assert "WRITTEN" in written(root, "src.txt"), "a workspace that is itself an environment can be worked in"


def test_links_lead_to_a_file_that_governs(root: Path) -> None:
    """A file that governs is written through links to it, to its directory, or through the file that a link of its name leads to."""
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "config").write_text("old")
    (root / "to-file").symlink_to(".git/config")
    (root / "to-dir").symlink_to(".git")
    (root / "chain").symlink_to("to-dir/hooks")
    (root / "real.env").write_text("old")
    (root / ".envrc").symlink_to("real.env")
    (root / "real-hooks").mkdir()
    (root / ".git" / "config").write_text("[core]\n\thooksPath = real-hooks\n")
    before = tree(root)
    for path in ("to-file", "to-dir/config", "chain/pre-commit", "real.env", ".envrc", "real-hooks/pre-commit"):
        assert "WRITTEN" not in written(root, path), path
    assert tree(root) == before


LINKS = {
    "pkg/AGENTS.md": "../shared.md",
    "pkg/.envrc": "../envs/middle",
    "envs/middle": "dev",
    ".github/workflows/ci.yml": "../../ci.yml",
    ".circleci/a/b.yml": "../../b.yml",
    "deep/a/b/c/.vscode": "../../../../editor",
}
LED_TO = ("shared.md", "envs/dev", "ci.yml", "b.yml", "editor/tasks.json")


def test_a_link_below_the_top_leads_to_an_ordinary_file(root: Path) -> None:
    """A tool writes the file that a link of a protected name leads to, where the link is anywhere below the top, or replaces a link on the way."""
    for name, target in LINKS.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(target)
    assert {path: written(root, path) for path in LED_TO} == dict.fromkeys(LED_TO, "protected_path")
    assert written(root, "envs/middle") == "protected_path"
    workspace = Workspace(root)
    files.write_file(workspace, "later.md", "x")
    (root / "sub" / "CLAUDE.md").symlink_to("../later.md")
    with pytest.raises(ToolFailed, match="protected"):
        files.write_file(workspace, "later.md", "evil", force=True)


GIT_CONFIG = """[core] hooksPath = top ; a comment
[include]
path = ../gitinc
[includeIf "gitdir:/x\\"]"] path = "../git\\
inc2" # \\
[core]
\thooksPath = "second # place"
"""


def test_gits_own_configuration_leads_to_an_ordinary_file(root: Path) -> None:
    """A tool writes a file that `.git/config` includes, or into a folder of hooks that it names, of a repository at the top or below, or elsewhere."""
    for path, text in {
        ".git/config": GIT_CONFIG,
        "gitinc": "[include]\npath = nested/inc",
        "pkg/.git/config": "[core]\n\thooksPath = hks\n",
        "tree/.git": "gitdir: ../store/tree\n",
        "store/tree/commondir": "../all",
        "store/all/config": "[CORE]HOOKSPATH=h",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    os.mkfifo(root / "pipe")
    (root / "sub" / ".git").mkdir()
    (root / "sub" / ".git" / "config").symlink_to("../../pipe")
    paths = ("top/pre-commit", "second # place/pre-commit", "gitinc", "gitinc2", "nested/inc", "pkg/hks/pre-commit")
    paths += ("store/tree/config", "store/all/config", "tree/h/pre-commit")
    assert {path: written(root, path) for path in paths} == dict.fromkeys(paths, "protected_path")
    assert "WRITTEN" in written(root, "hks/pre-commit")


def test_a_hard_link_leads_to_a_file_that_governs(root: Path) -> None:
    """Text is appended to a hard link of a file that governs, made earlier under a name of no account."""
    (root / ".envrc").write_text("old")
    os.link(root / ".envrc", root / "notes.txt")
    with pytest.raises(ToolFailed) as refused:
        files.append_file(Workspace(root), "notes.txt", "evil")
    assert refused.value.error_code == "hard_linked"
    files.write_file(Workspace(root), "notes.txt", "evil", force=True)  # gives this name another file
    assert (root / ".envrc").read_text() == "old"


def test_a_patch_moves_a_file_to_a_name_that_governs(root: Path) -> None:
    """A patch moves a harmless file to the name of one that governs, or moves one that governs away."""
    (root / "a.txt").write_text("line\n")
    (root / "AGENTS.md").write_text("line\n")
    workspace = Workspace(root, allow_delete=True)
    for one, other in (("a.txt", ".github/workflows/x.yml"), ("a.txt", ".EnvRC"), ("AGENTS.md", "b.txt")):
        with pytest.raises(ToolFailed) as refused:
            patch.apply_patch(workspace, f"*** Begin Patch\n*** Update File: {one}\n*** Move to: {other}\n@@\n-line\n+evil\n*** End Patch")
        assert refused.value.error_code == "protected_path"
    assert tree(root) == {"AGENTS.md": "line\n", "a.txt": "line\n", "sub": "/"}


# What is opened ---------------------------------------------------------------------------------------------------------------


def test_the_configuration_protects_more(root: Path) -> None:
    """A file that the configuration protects is written, by its name, below its directory, or in other letters."""
    for path in ("infra/a.tf", "infra/deep/b.tf", "INFRA/a.tf", "keys.pem", "sub/keys.pem"):
        assert written(root, path, protected=("infra", "**/*.pem")) == "protected_path", path
    assert "WRITTEN" in written(root, "infrastructure.txt", protected=("infra", "**/*.pem"))


def test_a_project_opens_its_own_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The project's own detent.toml opens what governs; only the operator's file may."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "detent.toml").write_text('[workspace]\nunprotected = ["**"]\n')
    assert detent(["list"]) == 2
    said = capsys.readouterr().err
    assert "workspace.unprotected" in said and "only the operator" in said


class Everything(TieredPolicy):
    """A policy that allows everything."""

    def __init__(self) -> None:
        super().__init__({"destructive": "allow"})


def opened_run(root: Path, tool: str, args: dict[str, Any]) -> tuple[str, list[str]]:
    """Run one call in a workspace whose operator opened `tools/*.py`; return how the run stands and what was written."""
    before = set(tree(root))

    async def main() -> str:
        room = WorkspaceConfig(root=str(root), unprotected=("tools/*.py",), sandbox="off", allow_delete=True)
        planner = ScriptedPlanner([ToolCall(tool=tool, args=args), FinalAnswer(content="x")])
        async with Engine(store="ram:", planner=planner, policy=Everything(), workspace=room, approver="caller") as engine:
            result = await engine.run(Agent(name="a", tools=[tool]), "Go")
            return result.status

    return asyncio.run(main()), sorted(set(tree(root)) - before)


@pytest.mark.parametrize(
    ("tool", "args"),
    [
        ("write_file", {"path": "tools/a.py", "content": "x"}),
        ("create_file", {"path": "./tools//a.py", "content": "x"}),
        ("append_file", {"path": "tools/a.py", "content": "x"}),
        ("apply_patch", {"patch": "*** Begin Patch\n*** Add File: tools/a.py\n+x\n*** End Patch"}),
        ("write_result_to_file", {"path": "tools/a.py", "result": "main.1.0"}),
    ],
)
def test_an_opened_path_is_written_without_asking(root: Path, tool: str, args: dict[str, Any]) -> None:
    """A path that the operator opened is written under a policy that allows everything, without anybody's approval."""
    assert opened_run(root, tool, args) == ("waiting_for_approval", [])


@pytest.mark.parametrize("path", ["way/a.py", "TOOLS/a.py", "a-link.py"])
def test_an_opened_path_is_written_by_another_name(root: Path, path: str) -> None:
    """A path that the operator opened is written through a link, so that the name which is asked about is not the one that is written."""
    (root / "tools").mkdir()
    (root / "tools" / "a.py").write_text("old")
    governs(root / "tools" / "a.py")
    (root / "way").symlink_to("tools")
    (root / "a-link.py").symlink_to("tools/a.py")
    assert opened_run(root, "write_file", {"path": path, "content": "evil", "force": True}) == ("completed", [])
    assert (root / "tools" / "a.py").read_text() == "old"


def test_what_the_operator_opened_is_written_once_a_person_approves(root: Path) -> None:
    """The way that is left open: the operator opens a path, and a person approves the call."""
    (root / ".github").mkdir()

    async def main() -> None:
        room = WorkspaceConfig(root=str(root), unprotected=(".github/*.md",), sandbox="off")
        planner = ScriptedPlanner([ToolCall(tool="write_file", args={"path": ".github/a.md", "content": "x"}), FinalAnswer(content="x")])
        async with Engine(store="ram:", planner=planner, workspace=room, approver="caller") as engine:
            result = await engine.run(Agent(name="a", tools=["write_file"]), "Go")
            assert result.status == "waiting_for_approval" and not (root / ".github" / "a.md").exists()
            await engine.approve(result.run_id, "main.1.0", by="ann")

    asyncio.run(main())
    assert (root / ".github" / "a.md").read_text() == "x"


def test_a_run_that_nobody_can_approve_begins_with_an_opened_path(root: Path) -> None:
    """A run in memory without an approver begins although its tool may have to ask."""

    async def main() -> None:
        room = WorkspaceConfig(root=str(root), unprotected=("tools/*.py",), sandbox="off")
        async with Engine(store="ram:", planner=ScriptedPlanner([FinalAnswer(content="x")]), workspace=room) as engine:
            await engine.run(Agent(name="a", tools=["write_file"]), "Go")

    with pytest.raises(ConfigError, match="need approval"):
        asyncio.run(main())


# Programs in the sandbox ------------------------------------------------------------------------------------------------------

SCRIPT = """
import json, os, shutil, sys
done = []
def attempt(what, act):
    try:
        act()
        done.append(what)
    except OSError:
        pass
def write(path):
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    with open(path, 'w') as file:
        file.write('evil')
for path in json.loads(sys.argv[1]):
    top = path.split('/')[0]
    attempt(f'write {path}', lambda: write(path))
    attempt(f'append {path}', lambda: open(path, 'a').close())
    attempt(f'remove {path}', lambda: os.remove(path))
    attempt(f'link {path}', lambda: os.link(path, 'stolen'))
    attempt(f'replace {path}', lambda: (open('new', 'w').write('evil'), os.replace('new', path)))
    attempt(f'chmod {path}', lambda: os.chmod(path, 0o777))
    folder = path
    while folder:
        attempt(f'move {folder}', lambda: os.rename(folder, 'moved'))
        attempt(f'exchange {folder}', lambda: os.symlink('/tmp', folder))
        folder = os.path.dirname(folder)
print(json.dumps(done))
"""


def boxed(root: Path, code: str, *args: str, **options: Any) -> Executed:
    """Run Python code in a sandbox."""
    return asyncio.run(execute(Workspace(root, **options), sys.executable, ["-c", code, *args], sandbox=Sandbox()))


def governed(root: Path) -> list[str]:
    """Fill a workspace with files that govern; return the paths."""
    paths = [
        *(
            ".git/config",
            ".git/hooks/pre-commit",
            ".git/info/attributes",
            "sub/deep/.git/hooks/x",
            ".envrc",
            "sub/.envrc",
            ".vscode/tasks.json",
        ),
        *(
            ".github/workflows/ci.yml",
            "detent.toml",
            "sub/agent.toml",
            "AGENTS.md",
            "env/bin/activate",
            "env/pyvenv.cfg",
            "infra/x/main.tf",
        ),
        *("plain-agent.toml", "Jenkinsfile"),
    ]
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("old")
    governs(root / "plain-agent.toml")
    return paths


@sandboxed
def test_a_sandboxed_program_changes_what_governs(root: Path) -> None:
    """A sandboxed program writes, removes, replaces, links or moves files that govern, or moves a directory that holds one."""
    paths = governed(root)
    before = tree(root)
    done = boxed(root, SCRIPT, json.dumps(paths), protected=("infra/**",))
    assert done.success, done.stderr
    assert json.loads(done.stdout) == []
    after = tree(root)
    after.pop("new", None)
    assert after == before


@sandboxed
def test_a_sandboxed_program_makes_what_governs(root: Path) -> None:
    """A sandboxed program makes files that govern and are not there: detent.toml cannot be made, others are renamed when it has ended."""
    (root / ".git").mkdir()
    code = """
import os
for path in ('.envrc', 'AGENTS.md', '.vscode/tasks.json', '.git/commondir', 'fine.txt'):
    os.makedirs(os.path.dirname(path) or '.', exist_ok=True)
    open(path, 'w').write('evil')
for act in (lambda: open('detent.toml', 'w'), lambda: os.remove('detent.toml'), lambda: os.rename('.git', 'x'), lambda: open('.git/hooks/x', 'w')):
    try:
        act()
        print('DONE')
    except OSError:
        pass
"""
    done = boxed(root, code)
    assert (done.stdout, done.code) == ("", 0), done.stderr
    assert done.refused == (".envrc", ".git/commondir", ".vscode", "AGENTS.md")
    assert tree(root) == {
        ".git": "/",
        ".git/hooks": "/",
        ".git/commondir.refused": "evil",
        ".envrc.refused": "evil",
        "AGENTS.md.refused": "evil",
        ".vscode.refused": "/",
        ".vscode.refused/tasks.json": "evil",
        "fine.txt": "evil",
        "sub": "/",
    }


BARE_CONFIG = '[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n\tfsmonitor = "touch {mark}; echo"\n'


def test_a_bare_repository_is_made_of_plain_files(root: Path) -> None:
    """`docs/HEAD`, `docs/config`, `docs/objects/x` and `docs/refs/x` make `git status` in docs run code; so does `config` beside a HEAD that is there."""
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    config = BARE_CONFIG.format(mark=root / "mark")
    workspace = Workspace(root)
    for path, text in {"docs/HEAD": "ref: refs/heads/main\n", "docs/config": config, "docs/objects/x": "", "docs/refs/x": ""}.items():
        with contextlib.suppress(ToolFailed):
            files.write_file(workspace, path, text, force=True)
    subprocess.run(["git", "status"], cwd=root / "docs", capture_output=True, check=False)
    assert not (root / "mark").exists()
    (root / "bare").mkdir()
    (root / "bare" / "HEAD").write_text("ref: refs/heads/main\n")
    assert {written(root, f"bare/{name}") for name in ("config", "hooks/pre-commit", "objects/x", "refs/x")} == {"protected_path"}
    assert "WRITTEN" in written(root, "bare/notes.txt") and "WRITTEN" in written(root, "head/index.tsx")


@sandboxed
def test_a_sandboxed_program_makes_the_workspace_a_bare_repository(root: Path) -> None:
    """A sandboxed program makes `HEAD`, `config`, `objects` and `refs` at the top of a workspace that is no repository: code at `git status`."""
    code = """
import os, sys
open('HEAD', 'w').write('ref: refs/heads/main\\n')
open('config', 'w').write(sys.argv[1])
os.mkdir('objects')
os.mkdir('refs')
"""
    done = boxed(root, code, BARE_CONFIG.format(mark=root / "mark"))
    assert done.refused == ("HEAD",), done.stderr
    subprocess.run(["git", "status"], cwd=root, capture_output=True, check=False)
    assert not (root / "mark").exists()
    (root / "HEAD").write_text("ref: refs/heads/main\n")
    (root / "config").unlink()
    assert boxed(root, code, "x").refused == () and not (root / "config").exists(), "HEAD is read-only, and nothing came after it"
    assert boxed(root, "open('config', 'w').write('evil')").refused == ("config",)


@sandboxed
@pytest.mark.parametrize(
    "act",
    [
        "[open(f'.vscode.refused{s}', 'w') for s in ('', *(f'-{n}' for n in range(1, 1001)))]",
        "os.chmod('.', 0o555)",
        "os.chmod('.', 0o300)",
    ],
)
def test_a_sandboxed_program_keeps_its_names_from_being_changed(root: Path, act: str) -> None:
    """A sandboxed program makes `.vscode`, and takes the names it could be renamed to, or the permission to rename or list."""
    long = "a" * 240 + ".code-workspace"
    done = boxed(root, f"import os; os.mkdir('.vscode'); open({long!r}, 'w'); {act}")
    assert done.refused == (".vscode", long), done.stderr
    assert not (root / ".vscode").exists() and not (root / long).exists()


@sandboxed
def test_a_sandboxed_program_makes_what_something_leads_to(root: Path, tmp_path: Path) -> None:
    """A sandboxed program makes the folder of hooks that git's configuration names and that is not there, or the target of a link; or writes them."""
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("[core]\n\thooksPath = sub/Hooks/all\n[include]\n\tpath = ../far/inc")
    (root / "sub" / "AGENTS.md").symlink_to("../shared.md")
    (root / "sub" / "CLAUDE.md").symlink_to("../there.md")
    (root / "there.md").write_text("old")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "inc").write_text("old")
    code = """
import os, sys
os.makedirs('sub/Hooks/all')
open('shared.md', 'w')
os.symlink(sys.argv[1], 'far')
try:
    open('there.md', 'w')
    print('WRITTEN')
except OSError:
    pass
"""
    done = boxed(root, code, str(tmp_path / "outside"))
    assert (done.stdout, done.refused) == ("", ("far", "shared.md", "sub/Hooks")), done.stderr
    assert (tmp_path / "outside" / "inc").read_text() == "old" and not (root / "far").exists() and not (root / "sub" / "Hooks").exists()


@sandboxed
def test_a_sandboxed_program_writes_a_hard_link(root: Path) -> None:
    """A sandboxed program writes to a hard link of a file that governs, made earlier; or to the file that a link of such a name leads to."""
    governed(root)
    os.link(root / ".envrc", root / "sub" / "notes.txt")
    os.link(root / "env" / "bin" / "activate", root / "keep")
    (root / "real").write_text("old")
    (root / ".zshrc").symlink_to("real")
    code = """
for path in ('sub/notes.txt', 'keep', 'real', '.zshrc'):
    try:
        open(path, 'w').write('evil')
        print('WRITTEN', path)
    except OSError:
        pass
import os
os.remove('.zshrc')
open('.zshrc', 'w').write('evil')
"""
    done = boxed(root, code)
    assert (done.stdout, done.code) == ("", 0), done.stderr
    assert (root / ".envrc").read_text() == (root / "env/bin/activate").read_text() == (root / ".zshrc").read_text() == "old"
    assert done.refused == (".zshrc",) and (root / ".zshrc").is_symlink()


@sandboxed
def test_git_still_works_in_the_sandbox(root: Path) -> None:
    """What is left open: a commit in the sandbox."""
    subprocess.run(["git", "init", "-q", "."], cwd=root, check=True)
    (root / "a.txt").write_text("a")
    workspace = Workspace(root)
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*")
    for words in (("add", "a.txt"), ("commit", "-q", "-m", "x"), ("log", "--oneline")):
        done = asyncio.run(execute(workspace, "git", [*who, *words], sandbox=Sandbox()))
        assert done.success, done.stderr
    done = asyncio.run(execute(workspace, "git", ["config", "core.fsmonitor", "touch /tmp/x"], sandbox=Sandbox()))
    assert not done.success
    assert not (root / "detent.toml").exists()
