"""Decides which directories are trusted. Only there may files do what they ask for (`demands`).

Trust belongs to the directory that holds a file, not to directories inside or above it. A person gives it once, and the state directory remembers
it. `DETENT_TRUST` also gives trust, or `--trust` for one command. With `pin` the trust is bound to the digest of the files: if one of them changes,
the directory is no longer trusted, and the difference can be shown. This module asks nobody itself: `Trust` gets a function that asks.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from detent.config.demands import Demand, Listing, agent_demands, govern_directory, home_of_agent, home_of_config, listing
from detent.config.state_directory import OPERATORS_FILE, made_state_directory, state_directory, state_home
from detent.core.errors import ConfigError
from detent.expressions.display import clean
from detent.ports.private_files import private_file

TRUST_FILE = "trust.json"
VARIABLE = "DETENT_TRUST"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The trust that somebody gave a directory. With a `digest` it holds only while the files have this digest. `files` are their texts then."""

    directory: str
    digest: str = ""
    files: dict[str, str] = {}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The question to a person: trust the directory of this listing? `difference` shows what changed since it was last trusted.

    With `beyond` the directory is trusted, bound to its files, but something asks for more than these files do.
    """

    listing: Listing
    difference: tuple[str, ...] = ()
    beyond: bool = False

    @property
    def pinned(self) -> bool:
        """Whether the directory was trusted with a digest and its files have changed since."""
        return bool(self.difference)

    def lines(self) -> list[str]:
        """Return the text to show before the question."""
        where = clean(str(self.listing.directory))
        if self.pinned:
            return [f"{where} was trusted with its files as they were; they have changed since:", *(f"  {line}" for line in self.difference),
                    "With your rights, they now ask for this:", *self.listing.lines()]  # fmt: skip
        if self.beyond:
            return [f"{where} is trusted only with its present files, which do not cover all of this:", *self.listing.lines()]
        return [f"{where} is not trusted yet. With your rights, its files ask for this:", *self.listing.lines()]


# Remembering --------------------------------------------------------------------------------------------------------------------------


def remembered(directory: Path) -> Remembered | None:
    """Return the remembered trust in a directory, or None. A note that is unreadable, or that the directory's own tools may write, does not count."""
    try:
        place = state_directory(directory)
        if place.resolve().is_relative_to(directory.resolve()):
            return None
        found = msgspec.json.decode((place / TRUST_FILE).read_bytes(), type=Remembered)
    except (ConfigError, OSError, msgspec.DecodeError):
        return None
    return found if found.directory == str(directory.resolve()) else None


def remember(found: Listing, *, pin: bool = False) -> None:
    """Trust the directory of a listing from now on, with `pin` only while its files stay the same. Raise `ConfigError` if that cannot be saved."""
    home = found.directory
    place = state_directory(home)
    if place.resolve().is_relative_to(home):
        raise ConfigError(
            f"trust in {home} would be saved inside it, in {place}, where its tools can write; "
            "set XDG_STATE_HOME to a directory outside of it"
        )
    said = Remembered(directory=str(home), digest=found.digest, files=found.texts()) if pin else Remembered(directory=str(home))
    try:
        made_state_directory(home)
        with private_file(place / TRUST_FILE) as file:
            file.write(msgspec.json.encode(said))
    except OSError as error:
        raise ConfigError(
            f"trust in {home} cannot be saved in {place}: {error.strerror}; correct that, or set {VARIABLE}={home}"
        ) from error


def revoke(directory: Path) -> bool:
    """Forget the trust in a directory. Return whether there was any."""
    try:
        (state_directory(directory) / TRUST_FILE).unlink()
    except FileNotFoundError:
        return False
    return True


def all_remembered() -> Iterator[Remembered]:
    """Yield the remembered trust of every directory that still exists."""
    for file in sorted(state_home().glob(f"*/{TRUST_FILE}")):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            found = remembered(Path(msgspec.json.decode(file.read_bytes(), type=Remembered).directory))
            if found is not None and Path(found.directory).is_dir():
                yield found


def govern_trusted(root: str | Path) -> None:
    """Mark the files of every trusted directory inside the workspace `root` as governing, with every file that they name."""
    place = Path(root).expanduser().resolve()
    found: list[Path] = []
    with contextlib.suppress(ConfigError):  # no home directory, or a wrong value: this trusts nothing
        found += trusted_by_environment()
    with contextlib.suppress(ConfigError):
        found += [Path(one.directory) for one in all_remembered()]
    for directory in found:
        if directory.is_relative_to(place):
            govern_directory(directory)


def trusted_by_environment(environment: Mapping[str, str] = os.environ) -> dict[Path, str]:
    """Return the directories in `DETENT_TRUST`, each with its digest or "". Raise `ConfigError` for a wrong value.

    The separator between several directories is that of PATH.
    """
    found: dict[Path, str] = {}
    for entry in filter(None, environment.get(VARIABLE, "").split(os.pathsep)):
        said, equals, digest = entry.rpartition("=")
        if not (equals and _DIGEST.fullmatch(digest)):
            said, digest = entry, ""
        directory = Path(said)
        if not directory.is_absolute() or (equals and not digest and not directory.is_dir()):
            raise ConfigError(
                f"environment: {VARIABLE}: {clean(entry)!r}: write an absolute DIRECTORY, or DIRECTORY=DIGEST with the 64 digits that "
                "`detent trust --pin` prints"
            )
        found[directory.resolve()] = digest
    return found


def difference(old: Remembered, new: Listing) -> tuple[str, ...]:
    """Return, as lines to show, what changed in the files of a directory since they were trusted."""
    now = new.texts()
    lines: list[str] = []
    for name in sorted({*old.files, *now}):
        before, after = old.files.get(name, ""), now.get(name, "")
        if before != after:
            compared = difflib.unified_diff(before.splitlines(), after.splitlines(), f"{name} (trusted)", f"{name} (now)", lineterm="")
            lines += [clean(line) for line in compared]
    return tuple(lines) or ("a part that is not kept, of a file that is too long to show",)


# Deciding -----------------------------------------------------------------------------------------------------------------------------


class Trust:
    """Decides whether files may do what they ask for; raises `ConfigError` if not.

    `environment`: the variables that the operator allows for files (`environment` of the operator's file; None: all). `vouched`: the caller trusts
    the directories of the files that it names. `ask`: shows a person the question and returns the answer.
    """

    def __init__(
        self, *, environment: Iterable[str] | None = (), vouched: bool = False, ask: Callable[[Question], bool] | None = None
    ) -> None:
        self.environment = None if environment is None else frozenset(environment)
        self.vouched = vouched
        self.ask = ask
        self._answered: set[Path] = set()

    def need_config(self, file: Path, demands: tuple[Demand, ...]) -> None:
        """Raise `ConfigError` unless these demands of a configuration file are allowed."""
        self.need(home_of_config(file), demands)

    def need_agent(self, file: Path, *, logged: bool = False) -> None:
        """Raise `ConfigError` unless the demands of an agent file are allowed. A file that only a log names (`logged`) is not vouched for."""
        self.need(home_of_agent(file), agent_demands(file), logged=logged)

    def need(self, directory: Path, demands: tuple[Demand, ...], *, logged: bool = False) -> None:
        """Raise `ConfigError` unless the directory is trusted with these demands, and the operator allows their variables."""
        if demands and not self.trusts(directory, demands, logged=logged):
            self._ask(directory, demands)
        for demand in demands:
            for name in demand.variables:
                self.need_variable(name, f"{demand.file}: {demand.key}", directory)

    def need_variable(self, name: str, who: str, directory: Path) -> None:
        """Raise `ConfigError` unless the operator allows files to read this environment variable."""
        if self.environment is not None and name not in self.environment:
            try:
                where = str(state_directory(directory) / OPERATORS_FILE)
            except ConfigError:
                where = "a file outside of the workspace that --config names"
            raise ConfigError(
                f"{clean(who)} reads the environment variable {clean(name)}, which the operator has not allowed; "
                f'to allow it, write environment = ["{clean(name)}"] into {where}'
            )

    def trusts(self, directory: Path, demands: tuple[Demand, ...] = (), *, logged: bool = False) -> bool:
        """Whether a directory is trusted with these demands. Trust with a digest must cover the files that make them."""
        home = directory.resolve()
        if home in self._answered or (self.vouched and not logged):
            return True
        digest = trusted_by_environment().get(home)
        if digest is None:
            kept = remembered(home)
            digest = None if kept is None else kept.digest
        if not digest:
            return digest is not None
        found = listing(home, others=demands)
        return found.digest == digest and all(os.path.relpath(demand.file, home) in found.files for demand in demands)

    def _ask(self, directory: Path, demands: tuple[Demand, ...]) -> None:
        home = directory.resolve()
        kept, found = remembered(home), listing(home, others=demands)
        pinned = kept is not None and kept.digest not in ("", found.digest)
        changed = difference(kept, found) if kept is not None and pinned else ()
        bound = trusted_by_environment().get(home) or (kept.digest if kept is not None else "")
        question = Question(listing=found, difference=changed, beyond=bool(bound) and bound == found.digest)
        if self.ask is None:
            raise ConfigError(_refusal(question))
        if not self.ask(question):
            raise ConfigError(f"{clean(str(home))} is not trusted, so nothing was done that its files ask for")
        if listing(home, others=demands).digest != found.digest:
            raise ConfigError(f"the files of {clean(str(home))} changed while you were asked, so nothing was done; start again")
        self._answered.add(home)
        if home not in trusted_by_environment() and not question.beyond:
            with contextlib.suppress(ConfigError):  # it cannot be saved: the answer counts only for this command
                remember(found, pin=kept is not None and bool(kept.digest))


def _refusal(question: Question) -> str:
    """Return why nothing was done, the list of demands, and what to do."""
    where = clean(str(question.listing.directory))
    if question.beyond:
        return "\n".join(
            [
                f"{where} is not trusted with this",
                *question.lines(),
                "Nothing of it has happened. If you trust it all the same: --trust, for one command",
            ]
        )
    first = f"{where} is not trusted: `detent trust {where}` shows what its files ask for, and asks you"
    if trusted_by_environment().get(question.listing.directory):
        first += f" ({VARIABLE} is bound to other files: their digest is now {question.listing.digest})"
    return "\n".join(
        [
            first,
            *question.lines(),
            "Nothing of it has happened. If you trust these files, give one of:",
            f"  detent trust {where}",
            "  --trust, for one command",
            f"  {VARIABLE}={where}, for servers; {VARIABLE}=DIRECTORY=DIGEST binds it to the files",
        ]
    )
