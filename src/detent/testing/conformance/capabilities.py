"""The contracts of `Capabilities` and of a `SecretSource`, as tests.

A project that resolves capabilities or keeps secrets in its own place writes a maker and a class with one fixture:

    class TestMyVault(SecretSourceContract):
        @pytest.fixture
        def maker(self):
            return MyVaultMaker()
"""

# ruff: noqa: S101 - these are tests

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from detent.capabilities.registry import Capability
from detent.core.agent import Host
from detent.ports import Capabilities, Denied, Resolution, SecretSource
from detent.testing.conformance.promises import Maker, documented

__all__ = ["CapabilitiesContract", "CapabilitiesMaker", "Capability", "SecretSourceContract", "SecretSourceMaker"]


class CapabilitiesMaker(Maker):
    """Makes resolvers of capabilities."""

    def capabilities(self, known: Sequence[Capability], environments: Sequence[str] = ()) -> Capabilities:
        """Return a resolver that knows these capabilities, in a process with these kinds of environment."""
        raise NotImplementedError


def _of(*versions: str, name: str = "search", **fields: Any) -> list[Capability]:
    return [Capability(id=name, version=version, **fields) for version in versions]


def _resolved(capabilities: Capabilities, *wanted: str, host: Host | None = None) -> Resolution:
    asked = list(wanted)
    resolution = capabilities.resolve(asked, host or Host())
    assert isinstance(resolution, Resolution), f"`resolve` gave a {type(resolution).__name__}; it gives a detent.ports.Resolution"
    assert asked == list(wanted), "`resolve` changed the list of what is wanted"
    msgspec.json.encode(resolution)
    return resolution


@documented(page="howto/tools/secrets.md", port="Capabilities")
class CapabilitiesContract:
    """The promises of `Capabilities`. A subclass gives the fixture `maker`."""

    def test_an_id_is_its_highest_version(self, maker: CapabilitiesMaker) -> None:
        """Versions are numbers: 1.10 is above 1.9. "id@version" means exactly that version."""
        capabilities = maker.capabilities(_of("1.9", "1.10", "1.2"))
        assert list(_resolved(capabilities, "search").resolved) == ["search@1.10"]
        assert list(_resolved(capabilities, "search@1.9").resolved) == ["search@1.9"]
        assert _resolved(capabilities, "search@3").missing == ("search@3",)

    def test_what_is_unknown_is_missing_as_it_was_asked_for(self, maker: CapabilitiesMaker) -> None:
        """Each is named once, and the rest is still resolved."""
        resolution = _resolved(maker.capabilities(_of("1")), "serach", "search", "other@2", "serach")
        assert sorted(resolution.missing) == ["other@2", "serach"], f"missing are {resolution.missing}"
        assert list(resolution.resolved) == ["search@1"]

    def test_nothing_wanted_is_nothing(self, maker: CapabilitiesMaker) -> None:
        """An agent without capabilities gets none."""
        assert _resolved(maker.capabilities(_of("1", scopes=("net",)))) == Resolution(resolved={})

    def test_dependencies_come_along_and_cycles_end(self, maker: CapabilitiesMaker) -> None:
        """All dependencies are resolved, missing or denied with it, in any dependency graph."""
        known = [
            *_of("1", name="report", dependencies=("search", "mail@2")),
            *_of("1", name="search", dependencies=("index",)),
            *_of("1", name="index", dependencies=("search", "disk")),
            *_of("1", "2", name="mail"),
        ]
        resolution = _resolved(maker.capabilities(known), "report")
        assert sorted(resolution.resolved) == ["index@1", "mail@2", "report@1", "search@1"]
        assert resolution.missing == ("disk",)

    @staticmethod
    def _denied(maker: CapabilitiesMaker, host: Host) -> list[Denied]:
        known = [
            *_of("1", name="report", dependencies=("mail",)),
            *_of("1", name="mail", scopes=("mail:send",), credentials=("smtp",), environments=("server",)),
        ]
        found = _resolved(maker.capabilities(known, ("laptop",)), "report", host=host).denied
        return sorted(found, key=lambda denied: denied.reason)

    def test_what_the_host_was_not_given_is_denied_with_the_reason(self, maker: CapabilitiesMaker) -> None:
        """`missing_required_scope:`, `missing_required_credential:` or `missing_required_environment:` and the name; of dependencies too."""
        reasons = ("missing_required_credential:smtp", "missing_required_environment:server", "missing_required_scope:mail:send")
        expected = [Denied(id="mail@1", reason=reason) for reason in reasons]
        found = self._denied(maker, Host())
        assert found == expected, f"denied are {found}"

    def test_what_the_host_was_given_is_not_denied(self, maker: CapabilitiesMaker) -> None:
        """Only the exact given value counts: no other scope, credential or environment replaces it."""
        given = Host(scopes=("mail:send",), credential_refs=("smtp",))
        assert [denied.reason for denied in self._denied(maker, given)] == ["missing_required_environment:server"]
        similar = Host(scopes=("mail:*", "mail"), credential_refs=("SMTP", "smtp2"))
        assert len(self._denied(maker, similar)) == 3, "something similar was taken for what is needed"
        known = _of("1", scopes=("a",), environments=("server",))
        assert _resolved(maker.capabilities(known, ("laptop", "server")), "search", host=Host(scopes=("a",))).denied == ()

    def test_the_digest_is_that_of_the_descriptor(self, maker: CapabilitiesMaker) -> None:
        """The digest is the same in every process and order, and differs for another descriptor: a resumed run reports what has changed."""
        one, other = _of("1"), _of("1", name="other")
        first = _resolved(maker.capabilities([*one, *other]), "search", "other").resolved
        second = _resolved(maker.capabilities([*other, *one]), "other", "search", host=Host(tenant="acme")).resolved
        assert first == second, f"the digests are {first}, and {second} in another order"
        assert all(first.values()), "a digest is blank"
        changed = _resolved(maker.capabilities(_of("1", description="finds more")), "search").resolved
        assert changed["search@1"] != first["search@1"], "the descriptor changed, and its digest did not"

    def test_resolving_twice_gives_the_same(self, maker: CapabilitiesMaker) -> None:
        """A resolver remembers neither hosts nor earlier calls."""
        capabilities = maker.capabilities(_of("1", scopes=("a",)))
        mine, theirs = Host(scopes=("a",)), Host()
        asked = [_resolved(capabilities, "search", host=host) for host in (mine, theirs, mine, theirs)]
        assert asked[0] == asked[2] and asked[1] == asked[3], "the second time another answer is given"
        assert (len(asked[0].denied), len(asked[1].denied)) == (0, 1)


class SecretSourceMaker(Maker):
    """Makes sources of secrets. `by_host`: the source may give each tenant its own value."""

    by_host: bool = False

    def source(self, values: Mapping[str, str]) -> SecretSource:
        """Return a source with these secrets; the values may change later."""
        raise NotImplementedError

    def forget(self, name: str) -> bool:
        """Remove the value of a secret but keep its name; return False if that is not possible."""
        return False

    def source_by_tenant(self, values: Mapping[tuple[str, str], str]) -> SecretSource:
        """Return a source with secret values by (tenant, name)."""
        raise NotImplementedError


@documented(page="howto/tools/secrets.md", port="SecretSource")
class SecretSourceContract:
    """The promises of a `SecretSource`. A subclass gives the fixture `maker`."""

    def test_a_secret_is_given_whole_under_its_name(self, maker: SecretSourceMaker) -> None:
        """`get` returns the exact value; `names` lists each name once, and no value."""
        values = {"token": "sk-ü/+=\t5", "empty-looking": "  x  ", "long": "k" * 5000}
        source = maker.source(values)
        assert {name: source.get(name, Host()) for name in values} == values
        names = list(source.names())
        assert sorted(names) == sorted(values), f"the names are {names}"

    def test_an_unknown_name_is_none(self, maker: SecretSourceMaker) -> None:
        """The result is None, not an error, an empty text or the value of a similar name."""
        source = maker.source({"token": "sk-1"})
        for name in ("", "TOKEN", "token ", "token2", "../token", "*"):
            try:
                found = source.get(name, Host())
            except Exception as error:  # noqa: BLE001 - what a source raises is what is looked at
                pytest.fail(f"asked for {name!r} it raised {type(error).__name__}: {error}")
            assert found is None, f"asked for {name!r} it gave a value"

    def test_a_value_that_is_gone_is_none(self, maker: SecretSourceMaker) -> None:
        """If the name is known but the value is gone, the result is None, not an error and not the old value."""
        source = maker.source({"token": "sk-1", "other": "sk-2"})
        assert source.get("token", Host()) == "sk-1"
        if not maker.forget("token"):
            pytest.skip("the values of this source stay")
        assert source.get("token", Host()) is None
        assert source.get("other", Host()) == "sk-2"

    def test_any_thread_may_ask(self, maker: SecretSourceMaker) -> None:
        """Sync tools run in threads, several at once."""
        values = {f"name-{n}": f"sk-{n}" for n in range(8)}
        source = maker.source(values)

        async def ask() -> list[str | None]:
            return await asyncio.gather(*(asyncio.to_thread(source.get, name, Host()) for name in values for _ in range(4)))

        assert asyncio.run(ask()) == [value for value in values.values() for _ in range(4)]

    def test_a_tenant_gets_its_own_value_and_no_other(self, maker: SecretSourceMaker) -> None:
        """If values depend on the tenant, a tenant without one gets None, whoever asked before."""
        if not maker.by_host:
            pytest.skip("this source has one value for all")
        source = maker.source_by_tenant({("acme", "token"): "sk-acme", ("other", "token"): "sk-other"})
        for tenant, expected in (("acme", "sk-acme"), ("other", "sk-other"), ("nobody", None), ("acme", "sk-acme"), ("", None)):
            assert source.get("token", Host(tenant=tenant)) == expected, f"tenant {tenant!r} was given another's value"
