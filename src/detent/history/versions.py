"""Versions of the code: what runs on which, and rolling one out."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from detent.core.agent import Host
from detent.core.errors import ConfigError, Explained
from detent.history.looking import check_upgrade
from detent.history.upgrading import Upgrade
from detent.ports import RunQuery
from detent.ports.options import check_fields, check_is
from detent.running.people import me
from detent.running.rules import named
from detent.running.runtime import Runtime
from detent.running.versions import OPEN, PLACE, SHARES, Shares, checked_version, open_by_version, refuse_one_more, shares_in


class VersionUse(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """What runs on one version: how many percent of the new runs begin there (None: no shares were set), and its unfinished runs by status.

    `version` is "" for runs that need none. `oldest` is when the oldest of them was started. `here`: this process has that version.
    """

    version: str
    share: int | None = None
    runs: dict[str, int] = {}
    oldest: datetime | None = None
    here: bool = False

    __post_init__ = check_fields

    @property
    def open(self) -> int:
        """How many runs have not finished."""
        return sum(self.runs.values())

    @property
    def draining(self) -> bool:
        """Whether no new run begins on it while unfinished ones are left."""
        return self.share == 0 and self.open > 0


async def versions(runtime: Runtime, *, host: Host | None = None) -> list[VersionUse]:
    """Return every version that has a share of the new runs or unfinished runs, and the one of this engine. With a host, only runs of its tenant count."""
    check_is(Host, host=host)
    await runtime.open()
    shares, own = (await shares_in(runtime.store)).of, runtime.parts.version
    found: dict[str, VersionUse] = {
        name: VersionUse(version=name, share=shares.get(name, 0) if shares else None, here=name == own) for name in (*shares, own) if name
    }
    for head in await runtime.store.list_runs(RunQuery(status=OPEN, tenant=host.tenant if host else None)):
        known = found.get(head.version) or VersionUse(version=head.version, share=0 if shares and head.version else None)
        oldest = head.created_at if known.oldest is None else min(known.oldest, head.created_at)
        runs = {**known.runs, head.status: known.runs.get(head.status, 0) + 1}
        found[head.version] = msgspec.structs.replace(known, runs=runs, oldest=oldest)
    return [found[name] for name in sorted(found)]


async def roll_out(
    runtime: Runtime, shares: Mapping[str, int], *, by: str = "", check: bool = True, found: Upgrade | None = None
) -> Shares:
    """Set how many percent of the new runs begin on which version, and return all shares. A version with share 0 is drained: its runs finish or move.

    Versions that are not named keep their share if all add up to 100; the only one of them that has a share gets the rest. A version that had no share
    before is checked first (`check_upgrade`): that happens here, so this engine must have that version, unless `check` is false. `found` is such a
    check that was done already. Raises `ConfigError`, also for one version too many (`Bounds.max_versions`).
    """
    check_is(dict, shares=dict(shares))
    await runtime.open()
    before, there = await shares_in(runtime.store), await open_by_version(runtime.store)
    of = shared({**{name: 0 for name in there if name}, **before.of}, shares)
    new = [name for name, share in of.items() if share and not before.of.get(name)]
    for name in new:
        refuse_one_more(there, name, runtime.max_versions)
        if check and name != runtime.parts.version:
            here = f"has {runtime.parts.version!r}" if runtime.parts.version else "has none"
            raise ConfigError(
                f"version {name!r} is new, so the unfinished runs must be checked with its code, and this process {here}; nothing was changed. Do it where "
                f"{name!r} is installed (DETENT_VERSION={name}), or without a check (`--unchecked`, check=False)"
            )
    if new and check and found is None:
        found = await check_upgrade(runtime)
    checked = {} if found is None else {"checked": len(found.runs), "stranded": len(found.stranded)}
    said = Shares(of=of, by=named(by or me(), "versions", what="a roll-out"), at=runtime.parts.clock.now(), **checked)
    await runtime.store.put_blob(PLACE, SHARES, msgspec.json.encode(said))
    return said


def shared(before: Mapping[str, int], said: Mapping[str, int]) -> dict[str, int]:
    """Return the shares of all versions after these were set. Raise `ConfigError` if they do not add up to 100."""
    for name, share in said.items():
        if not checked_version(name) or type(share) is not int or not 0 <= share <= 100:
            raise ConfigError(f"the share of version {name!r} is {share!r}; give whole percents from 0 to 100, such as 2026-11=20")
    others = {name: share for name, share in before.items() if name not in said}
    having = [name for name, share in others.items() if share]
    rest = 100 - sum(said.values())
    if rest == 0:
        others = dict.fromkeys(others, 0)
    elif len(having) == 1 and rest > 0:
        others[having[0]] = rest
    after = {**others, **said}
    if sum(after.values()) != 100:
        now = ", ".join(f"{name}={share}" for name, share in sorted(after.items()))
        raise ConfigError(f"the shares must add up to 100, and {now} add up to {sum(after.values())}; name more versions")
    return after
