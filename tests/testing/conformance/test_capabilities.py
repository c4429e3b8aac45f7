"""Detent's capability registry and sources of secrets keep their contracts; broken ones are found out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detent.capabilities import CapabilityRegistry, EnvironmentSecrets, FileSecrets, FunctionSecrets, SecretSources
from detent.capabilities.registry import split_version
from detent.core.agent import Host
from detent.ports import Capabilities, Denied, Resolution, SecretSource
from detent.testing.conformance.capabilities import (
    CapabilitiesContract,
    CapabilitiesMaker,
    Capability,
    SecretSourceContract,
    SecretSourceMaker,
)
from testing.conformance.rejecting import checks_of, failing


class Registries(CapabilitiesMaker):
    def __init__(self, kind: Callable[..., Capabilities] = CapabilityRegistry) -> None:
        self._kind = kind

    def capabilities(self, known: Sequence[Capability], environments: Sequence[str] = ()) -> Capabilities:
        return self._kind(known, environments=environments)


class TestCapabilityRegistry(CapabilitiesContract):
    @pytest.fixture
    def maker(self) -> CapabilitiesMaker:
        return Registries()


class Changed(CapabilityRegistry):
    """Does something to what the registry answers."""

    def change(self, found: Resolution, wanted: Sequence[str], host: Host) -> Resolution:
        return found

    def resolve(self, wanted: Sequence[str], host: Host) -> Resolution:
        return self.change(super().resolve(wanted, host), wanted, host)


class ComparesVersionsAsText(CapabilityRegistry):
    def get(self, wanted: str) -> Capability | None:
        name, version = split_version(wanted)
        versions = self._known.get(name, {})
        if version or not versions:
            return super().get(wanted)
        return max(versions.values(), key=lambda capability: capability.version)


class TakesAnotherVersion(CapabilityRegistry):
    def get(self, wanted: str) -> Capability | None:
        return super().get(wanted) or super().get(wanted.partition("@")[0])


class SaysNothingOfWhatIsMissing(Changed):
    def change(self, found: Resolution, wanted: Sequence[str], host: Host) -> Resolution:
        return msgspec.structs.replace(found, missing=())


class ForgetsDependencies(Changed):
    def change(self, found: Resolution, wanted: Sequence[str], host: Host) -> Resolution:
        names = {one.partition("@")[0] for one in wanted}
        kept = {key: value for key, value in found.resolved.items() if key.partition("@")[0] in names}
        return msgspec.structs.replace(found, resolved=kept)


class FollowsCycles(CapabilityRegistry):
    def resolve(self, wanted: Sequence[str], host: Host) -> Resolution:
        for one in wanted:
            known = self.get(one)
            if known is not None:
                self.resolve(known.dependencies, host)
        return super().resolve(wanted, host)


class ResolvesEverything(Changed):
    def change(self, found: Resolution, wanted: Sequence[str], host: Host) -> Resolution:
        return found if wanted else super().resolve(list(self._known), host)


class DeniesNothing(Changed):
    def change(self, found: Resolution, wanted: Sequence[str], host: Host) -> Resolution:
        return msgspec.structs.replace(found, denied=())


class DeniesWithoutAReason(Changed):
    def change(self, found: Resolution, wanted: Sequence[str], host: Host) -> Resolution:
        return msgspec.structs.replace(found, denied=tuple(Denied(id=one.id, reason="no") for one in found.denied))


class TakesSimilarScopes(CapabilityRegistry):
    def _reasons(self, capability: Capability, host: Host) -> list[str]:
        wide = msgspec.structs.replace(host, scopes=(*host.scopes, *capability.scopes)) if host.scopes else host
        return super()._reasons(capability, wide)


class HasDigestsOfNames(Changed):
    def change(self, found: Resolution, wanted: Sequence[str], host: Host) -> Resolution:
        return msgspec.structs.replace(found, resolved=dict.fromkeys(found.resolved, "d"))


class HasDigestsByOrder(Changed):
    def change(self, found: Resolution, wanted: Sequence[str], host: Host) -> Resolution:
        return msgspec.structs.replace(found, resolved={key: f"{value}{n}" for n, (key, value) in enumerate(found.resolved.items())})


class RemembersTheFirstHost(Changed):
    host: Host | None = None

    def resolve(self, wanted: Sequence[str], host: Host) -> Resolution:
        self.host = self.host or host
        return super().resolve(wanted, self.host)


class Sorts(Changed):
    def change(self, found: Resolution, wanted: Sequence[str], host: Host) -> Resolution:
        wanted.sort()  # type: ignore[attr-defined]
        return found


VERSIONS = "test_an_id_is_its_highest_version"
MISSING = "test_what_is_unknown_is_missing_as_it_was_asked_for"
NOTHING = "test_nothing_wanted_is_nothing"
CYCLES = "test_dependencies_come_along_and_cycles_end"
DENIED = "test_what_the_host_was_not_given_is_denied_with_the_reason"
GIVEN = "test_what_the_host_was_given_is_not_denied"
DIGEST = "test_the_digest_is_that_of_the_descriptor"
TWICE = "test_resolving_twice_gives_the_same"

REJECTED: dict[Any, set[str]] = {
    ComparesVersionsAsText: {VERSIONS},
    TakesAnotherVersion: {VERSIONS},
    SaysNothingOfWhatIsMissing: {VERSIONS, MISSING, CYCLES},
    ForgetsDependencies: {CYCLES},
    FollowsCycles: {CYCLES},
    ResolvesEverything: {NOTHING},
    DeniesNothing: {DENIED, GIVEN, TWICE},
    DeniesWithoutAReason: {DENIED, GIVEN},
    TakesSimilarScopes: {GIVEN},
    HasDigestsOfNames: {DIGEST},
    HasDigestsByOrder: {DIGEST},
    RemembersTheFirstHost: {TWICE},
    Sorts: {MISSING, DIGEST},
}


@pytest.mark.parametrize("kind", REJECTED)
def test_the_suite_rejects_capabilities_that_are_broken(kind: Any) -> None:
    """The checks about the broken promise fail, and no other."""
    assert failing(CapabilitiesContract, lambda: Registries(kind)) == REJECTED[kind]


def test_every_check_of_capabilities_rejects_something() -> None:
    """No check of the suite is there for nothing."""
    assert set(checks_of(CapabilitiesContract)) - set().union(*REJECTED.values()) == set()


# Secrets ------------------------------------------------------------------------------------------------------------------------


class Variables(SecretSourceMaker):
    """Secrets in the environment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def source(self, values: Mapping[str, str]) -> SecretSource:
        names = {name: f"SECRET_{n}" for n, name in enumerate(values)}
        for name, value in values.items():
            self._patch.setenv(names[name], value)
        self._names = names
        return EnvironmentSecrets(names)

    def forget(self, name: str) -> bool:
        self._patch.delenv(self._names[name])
        return True


class Files(SecretSourceMaker):
    def __init__(self, place: Path) -> None:
        self._place = place

    def source(self, values: Mapping[str, str]) -> SecretSource:
        for name, value in values.items():
            (self._place / name).write_text(value + "\n", encoding="utf-8")
        return FileSecrets({name: self._place / name for name in values})

    def forget(self, name: str) -> bool:
        (self._place / name).unlink()
        return True


class Functions(SecretSourceMaker):
    by_host = True

    def __init__(self, kind: Callable[..., Any] = FunctionSecrets) -> None:
        self._kind = kind
        self._values: dict[str, str] = {}

    def source(self, values: Mapping[str, str]) -> SecretSource:
        self._values = dict(values)
        return self._kind(lambda name, host: self._values.get(name), names=tuple(values))

    def forget(self, name: str) -> bool:
        del self._values[name]
        return True

    def source_by_tenant(self, values: Mapping[tuple[str, str], str]) -> SecretSource:
        return self._kind(lambda name, host: values.get((host.tenant, name)), names=tuple({name for _, name in values}))


class TestEnvironmentSecrets(SecretSourceContract):
    @pytest.fixture
    def maker(self, monkeypatch: pytest.MonkeyPatch) -> SecretSourceMaker:
        return Variables(monkeypatch)


class TestFileSecrets(SecretSourceContract):
    @pytest.fixture
    def maker(self, tmp_path: Path) -> SecretSourceMaker:
        return Files(tmp_path)


class TestFunctionSecrets(SecretSourceContract):
    @pytest.fixture
    def maker(self) -> SecretSourceMaker:
        return Functions()


class BrokenSecrets(FunctionSecrets):
    """The same, to be broken."""


class StripsValues(BrokenSecrets):
    def get(self, name: str, host: Host) -> str | None:
        found = super().get(name, host)
        return None if found is None else found.strip()


class NamesTwice(BrokenSecrets):
    def names(self) -> Sequence[str]:
        return (*super().names(), *super().names())


class RaisesForUnknownNames(BrokenSecrets):
    def get(self, name: str, host: Host) -> str | None:
        if name not in self.names():
            raise KeyError(name)
        return super().get(name, host)


class FoldsNames(BrokenSecrets):
    def get(self, name: str, host: Host) -> str | None:
        return super().get(name.strip().lower(), host)


class Caches(BrokenSecrets):
    known: dict[tuple[str, str], str | None]

    def get(self, name: str, host: Host) -> str | None:
        self.known = getattr(self, "known", {})
        key = (host.tenant, name)
        if key not in self.known:
            self.known[key] = super().get(name, host)
        return self.known[key]


class CachesForAll(BrokenSecrets):
    known: dict[str, str]

    def get(self, name: str, host: Host) -> str | None:
        self.known = getattr(self, "known", {})
        found = super().get(name, host)
        if found is not None and host.tenant:
            self.known.setdefault(name, found)
        return self.known.get(name, found)


class BelongsToItsThread(BrokenSecrets):
    thread: Any = None

    def get(self, name: str, host: Host) -> str | None:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("created in another thread")
        return super().get(name, host)


WHOLE = "test_a_secret_is_given_whole_under_its_name"
UNKNOWN = "test_an_unknown_name_is_none"
GONE = "test_a_value_that_is_gone_is_none"
THREADS = "test_any_thread_may_ask"
TENANT = "test_a_tenant_gets_its_own_value_and_no_other"


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (BrokenSecrets, set[str]()),
        (StripsValues, {WHOLE}),
        (NamesTwice, {WHOLE}),
        (RaisesForUnknownNames, {UNKNOWN}),
        (FoldsNames, {UNKNOWN}),
        (Caches, {GONE}),
        (CachesForAll, {TENANT}),
        (BelongsToItsThread, {THREADS}),
    ],
)
def test_the_suite_rejects_a_source_of_secrets_that_is_broken(kind: Any, failed: set[str]) -> None:
    """The checks about the broken promise fail, and no other; a sound one fails none."""
    assert failing(SecretSourceContract, lambda: Functions(kind)) == failed


class Together(Functions):
    """Two sources as one, each with a part of the names."""

    def source(self, values: Mapping[str, str]) -> SecretSource:
        self._values = dict(values)
        names = tuple(values)

        def get(name: str, host: Host) -> str | None:
            return self._values.get(name)

        return SecretSources(FunctionSecrets(get, names=names[:1]), FunctionSecrets(get, names=names))

    def source_by_tenant(self, values: Mapping[tuple[str, str], str]) -> SecretSource:
        return SecretSources(super().source_by_tenant(values))


class TestSeveralSources(SecretSourceContract):
    @pytest.fixture
    def maker(self) -> SecretSourceMaker:
        return Together()
