"""Finds the governing files of a workspace, which tools do not write: they decide what an agent may do, or run when a person works there later.

Names are compared as the most lenient file system would: ignoring case, Unicode form, invisible characters, and dots and spaces at the end. Files that
a person starts on purpose (Makefile, package.json, tests) are the agent's work and are not protected.
"""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from detent.core.errors import ConfigError, ToolFailed
from detent.ports.governing_files import governing_in
from detent.tools.failures import failed, shown
from detent.tools.workspace.globbing import Glob
from detent.tools.workspace.redirections import Redirections

GIT = frozenset({".git", "git~1"})
"""A repository: its config, its hooks and their redirections run programs. The second is its short name on DOS file systems."""

VENV_MARKS = frozenset({"pyvenv.cfg", "conda-meta"})
"""The marks of a virtual environment (PEP 405, conda): its programs and `.pth` files run whenever it is used."""

VENV_PARTS = frozenset({"bin", "scripts", "lib", "lib64", "include", "share"})
"""If the workspace itself is a virtual environment, these entries belong to it."""

HEAD = "head"
"""The mark of a repository under any name (gitrepository-layout), folded. It must be a file or a link, not a directory."""

GIT_FILES = ("config", "config.worktree", "commondir", "hooks", "info", "modules", "worktrees", "gitdir")
"""Entries of a repository that run programs (gitconfig, githooks), select them (info/attributes) or lead elsewhere. Git writes the rest at each commit."""

_KINDS = {
    "git runs programs that it names": (
        ".gitmodules .gitconfig .githooks .husky .lefthook lefthook.yml .lefthook.yml"
        " lefthook-local.yml .lefthook-local.yml .overcommit.yml .pre-commit-config.yaml .hg .svn"
    ),
    "it configures Detent or one of its agents": "detent.toml agent.toml .detent",
    # Sources: the manual pages of bash, zsh, dash, ksh, tcsh, fish, readline, pam_env, direnv, sshd
    "a shell reads it when it starts": (
        ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv .zprofile .zlogin .zlogout .kshrc .mkshrc .cshrc"
        " .tcshrc .login .logout .inputrc .xprofile .xinitrc .xsessionrc .pam_environment config.fish .envrc .direnv mise.toml .mise.toml"
        " mise.local.toml .mise.local.toml .mise .ssh"
    ),
    # Sources: the manuals of VS Code, JetBrains, Visual Studio, Zed, dev containers, of Vim and Neovim ('exrc') and of Emacs (directory variables)
    "an editor reads it when it opens the directory": (
        ".vscode .idea .run .vs .fleet .zed .devcontainer .devcontainer.json .vim .vimrc .gvimrc .exrc .nvimrc .nvim.lua .lvimrc .emacs .emacs.d"
        " .dir-locals.el .dir-locals-2.el .helix"
    ),
    "programs keep their settings in it and read them when they start": ".config",
    "a debugger reads it when it starts": ".gdbinit .lldbinit",
    "it defines what continuous integration runs": (
        ".github .gitlab .gitlab-ci.yml .gitlab-ci.yaml .gitea .forgejo .ci .circleci .travis.yml .travis.yaml jenkinsfile .jenkins .buildkite"
        " azure-pipelines.yml azure-pipelines.yaml .azure-pipelines .azuredevops bitbucket-pipelines.yml appveyor.yml .appveyor.yml .drone.yml"
        " .woodpecker .woodpecker.yml .woodpecker.yaml .cirrus.yml .cirrus.star .semaphore .tekton .teamcity .builds .build.yml buildspec.yml"
        " buildspec.yaml cloudbuild.yml cloudbuild.yaml codefresh.yml wercker.yml"
    ),
    # agents.md, agentskills.io, and the directories and files that agents of the last years read
    "it is read as instructions by an agent": (
        "agents.md agents.override.md agent.md claude.md claude.local.md gemini.md qwen.md warp.md memory.md skill.md copilot-instructions.md"
        " .claude .codex .gemini .qwen .cursor .cursorrules .windsurf .windsurfrules .clinerules .roo .roorules .kiro .junie .continue .amazonq"
        " .agents .agent .aider.conf.yml .goosehints .goose .rules .trae .augment-guidelines .crush.json"
        " .opencode opencode.json opencode.jsonc .mcp.json mcp.json"
    ),
}
PROTECTED = {name: why for why, names in _KINDS.items() for name in names.split()}
"""Names that are protected everywhere, with the reason; folded as in `fold`. A directory is protected with all its content."""

_BARE = frozenset({*GIT_FILES, "objects", "refs"})


_INSTRUCTIONS = frozenset(name for name, why in PROTECTED.items() if why == "it is read as instructions by an agent")


def is_instruction(path: str) -> bool:
    """Whether a path leads to what agents read as instructions."""
    return any(fold(part) in _INSTRUCTIONS for part in path.replace("\\", "/").split("/"))


def fold(name: str) -> str:
    """Return a name in the form in which lenient file systems compare it."""
    if name.isascii():
        return name.lower().rstrip(". ") or name
    name = "".join(c for c in unicodedata.normalize("NFKC", name) if unicodedata.category(c) not in ("Cf", "Mn"))
    return name.casefold().rstrip(". ") or name


def fold_path(path: str) -> str:
    """Return a path with every name folded."""
    return "/".join(map(fold, path.split("/")))


class Protection:
    """The protected paths in the directory `root`: governing files and `protected` patterns. `unprotected` opens paths. Paths are relative, with `/`.

    A `protected` pattern that matches a directory protects all its content. A path is opened only by a pattern that matches the whole path as it is
    written. Raise `ConfigError` for a wrong pattern.
    """

    def __init__(self, root: str, *, protected: Sequence[str] = (), unprotected: Sequence[str] = ()) -> None:
        self.root = root
        self._redirections = Redirections(root, lambda name: bool(name_governs(fold(name))))
        self.unprotected = tuple(unprotected)
        self._protected = [(text, _glob(text.casefold(), "protected")) for text in protected]
        self._opened = [_glob(text, "unprotected") for text in unprotected]

    def opened(self, path: str) -> bool:
        """Whether the operator opened the path. A write to it still asks."""
        return any(_matches(glob, path.split("/")) for glob in self._opened)

    def asks(self, paths: Iterable[str]) -> str:
        """Return why a person must approve a call that writes these paths, or "". It checks only the names."""
        for path in map(plain, paths):
            if self.opened(path):
                return f"{shown(path)} is a path that the operator opened (`unprotected`): each write to it is approved by a person"
        return ""

    def check(self, asked: str, real: str) -> None:
        """Raise `ToolFailed` (`protected_path`) if `real`, the target of the path `asked`, must not be written.

        An opened path can be written only by its own name, because `asks` checked that name.
        """
        why = self.why(real)
        if why and not (self.opened(real) and plain(asked) == real):
            raise refused(asked, real, why)

    def why(self, path: str) -> str:
        """Return why a path is protected, or "". Opened paths are protected too."""
        parts = path.split("/")
        folded = [fold(part) for part in parts]
        for name in folded:
            if why := name_governs(name):
                return why
        if folded[-1] == HEAD:
            return "it makes its directory a repository of git, which runs the programs that are named there"
        for text, glob in self._protected:
            if any(_matches(glob, folded[:end]) for end in range(1, len(folded) + 1)):
                return f"the configuration protects it ({text!r})"
        if _below("/".join(folded), self.in_use()):
            return "it governs an agent that runs here: it was read as its configuration, imported, or is read as instructions"
        if self._in_environment(parts):
            return "it is part of a virtual environment, whose programs people run"
        if any(name in _BARE and is_bare(Path(self.root, *parts[:end])) for end, name in enumerate(folded)):
            return "its directory is a repository of git, which runs the programs that are named there"
        return ""

    def in_use(self) -> set[str]:
        """Return the governing files and folders in use, folded: those of this process, and the targets of other governing files."""
        return {fold_path(path) for path in (*governing_in(self.root), *self.led_to())}

    def led_to(self) -> set[str]:
        """Return the places, existing or not, that links with a protected name and git's configurations lead to."""
        return self._redirections.found()

    def is_protected_by_pattern(self, folded: str) -> bool:
        """Whether a pattern of `protected` matches the folded path itself."""
        return bool(self._protected) and any(_matches(glob, folded.split("/")) for _, glob in self._protected)

    def _in_environment(self, parts: list[str]) -> bool:
        """Whether a directory on the way is a virtual environment. If the root is one, only its programs and packages count."""
        for end in range(len(parts)):
            place = Path(self.root, *parts[:end])
            if any(os.path.lexists(place / mark) for mark in VENV_MARKS):
                return end > 0 or fold(parts[0]) in VENV_PARTS
        return False


def plain(path: str) -> str:
    """Return a path without empty names and dots."""
    return "/".join(part for part in path.split("/") if part not in ("", "."))


def is_bare(directory: Path, head: str = "HEAD") -> bool:
    """Whether git treats the directory itself as a repository once `objects`, `refs` and `config` exist too."""
    place = directory / head
    return place.is_symlink() or place.is_file()


def name_governs(folded: str) -> str:
    """Return why a file or directory with this folded name is protected everywhere, or ""."""
    if folded in GIT:
        return "it is git's own, which runs the programs that are named there"
    if folded in VENV_MARKS:
        return "it makes its directory a virtual environment, whose programs people run"
    return PROTECTED.get(folded) or (PROTECTED[".vscode"] if folded.endswith((".code-workspace", ".sublime-project")) else "")


def refused(asked: str, real: str, why: str) -> ToolFailed:
    """Return the error for a protected path."""
    what = shown(asked) if plain(asked) == real else f"{shown(asked)}, which is {shown(real)},"
    message = (
        f"{what} is protected and was not written: {why}. Leave it as it is and say what should change; "
        f"only the operator can open it: workspace.unprotected = [{real[:200]!r}] in the operator's "
        "configuration file, and a write to it is then approved by a person"
    )
    return failed("protected_path", message, path=real[:200], why=why)


def _glob(text: str, key: str) -> Glob:
    try:
        return Glob(text, include_hidden=True)
    except ToolFailed as error:
        raise ConfigError(f"workspace.{key}: {error}") from None


def _matches(glob: Glob, parts: Sequence[str]) -> bool:
    states = glob.start
    for part in parts:
        states = glob.step(states, part)
    return glob.matches(states)


def _below(folded: str, places: set[str]) -> bool:
    """Whether a path is one of the places, or in one of them."""
    while folded:
        if folded in places:
            return True
        folded = folded.rpartition("/")[0]
    return False
