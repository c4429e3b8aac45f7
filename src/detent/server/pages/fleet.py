"""The fleet: the workers, the queue and what they did lately; what is held, what workers gave up, and what tenants have used.

Rule: what concerns all tenants is shown to those who operate the whole store. Others see their own tenant's part.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from starlette.responses import Response

from detent.core.errors import DetentError
from detent.core.records import RunHead
from detent.metering.tenants import OTHERS, TenantBudget
from detent.ports import RunQuery, Spent
from detent.ports.holding import HELD_KINDS, Hold
from detent.running.fleet import Fleet
from detent.server.pages.visits import Page, Visit

GIVEN_UP = "waiting_for_operator"
ENDS = ("completed", "failed", "stopped")
LETTERS = 20
"""So many dead letters are shown; the list of runs has the others."""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """A run that workers gave up, and why."""

    head: RunHead
    why: str


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What a tenant has used in the current window, beside its bounds; `spent` is None for the budget of all tenants that are not named."""

    tenant: str
    budget: TenantBudget
    spent: Spent | None

    @property
    def bounds(self) -> Sequence[tuple[str, float | None, float]]:
        """What is bounded, how much of it is used, and the bound."""
        return [(of, None if self.spent is None else getattr(self.spent, of), most) for of, most in self.budget.bounds.items()]


async def fleet_page(visit: Visit) -> Response:
    """Show the fleet. The part that moves is fetched again while it is open."""
    if visit.request.headers.get("hx-request") == "true":
        return visit.page("fleet_now.html", **await _now(visit))
    return visit.page(
        "fleet.html",
        holds=await _holds(visit),
        letters=await _letters(visit),
        accounts=await _accounts(visit),
        kinds=HELD_KINDS,
        **await _now(visit),
    )


async def _now(visit: Visit) -> dict[str, Any]:
    """Return what moves: the figures of the store, for those who operate the whole of it."""
    if not visit.of_all:
        return {"fleet": None, "all": False}
    found: Fleet = await visit.served.fleet.get()
    health = await visit.served.engine.health("/readyz")
    rates = {what: sum(found.per_minute(one) for one in several) for what, several in _RATES.items()}
    capacity = sum(max(0, one.concurrency) for one in found.living if not one.stopping)
    workers = sorted(found.workers, key=lambda one: (one.silent, one.name))
    names = {run_id: one.name for one in found.living for run_id in one.runs}
    return {"fleet": found, "all": True, "ready": health.text.strip(), "is_ready": health.status == 200, "rates": rates, "capacity": capacity,
            "workers": workers, "names": names, "ends": ENDS, "given_up": found.tally.statuses.get(GIVEN_UP, 0)}  # fmt: skip


_RATES = {
    "ended": ENDS,
    "attempts": ("attempts",),
    "failed attempts": ("failed_attempts",),
    "taken over": ("takeovers",),
    "calls in doubt": ("in_doubt",),
}
"""What is counted for a minute, and the figures of workers that it adds up."""


async def _holds(visit: Visit) -> Sequence[Hold]:
    """Return what is held: all of it, or what holds the runs of the visitor's tenant, without the operator's words about it."""
    found = await visit.served.engine.holds()
    if visit.of_all:
        return found
    mine = [one for one in found if one.of != "tenant" or one.name == visit.caller.tenant]
    return [msgspec.structs.replace(one, by="the operator", why="") for one in mine]


async def _letters(visit: Visit) -> Sequence[Letter]:
    """Return the runs of the visitor's tenant that workers gave up."""
    engine, host = visit.served.engine, visit.caller.host
    heads = await engine.list_runs(RunQuery(status=(GIVEN_UP,), tenant=visit.caller.tenant, limit=LETTERS), host=host)
    found: list[Letter] = []
    for head in heads:
        why = "its log cannot be read"
        with suppress(DetentError):
            why = (await engine.load(head.run_id, host=host)).state.dead_letter
        found.append(Letter(head=head, why=why))
    return found


async def _accounts(visit: Visit) -> Sequence[Account]:
    """Return the accounts of all tenants with a budget, or that of the visitor's."""
    tenants = visit.served.engine.tenants
    names = tenants.budgets if visit.of_all else [visit.caller.tenant]
    found: list[Account] = []
    for name in names:
        budget = tenants.budget_of(name)
        if budget is not None:
            spent = None if name == OTHERS else await tenants.spent(name, budget.window)
            found.append(Account(tenant=name, budget=budget, spent=spent))
    return found


async def pause(visit: Visit) -> Response:
    """Pause an agent, a tenant, a tool or a provider for every worker."""
    visit.need_all()
    form = await visit.form()
    await visit.served.engine.pause(
        f"{form.get('of', '')}:{form.get('name', '').strip()}", by=visit.caller.principal, why=form.get("why", "")
    )
    return visit.go("/ui/fleet")


async def unpause(visit: Visit) -> Response:
    """End what holds something."""
    visit.need_all()
    await visit.served.engine.unpause((await visit.form()).get("what", ""), by=visit.caller.principal)
    return visit.go("/ui/fleet")


async def redrive(visit: Visit) -> Response:
    """Open a run that workers gave up again; they take it as any other."""
    form = await visit.form()
    engine = visit.served.engine
    run_id = await engine.runtime.visible(form.get("run", ""), visit.caller.host)
    await engine.reopen(run_id, by=visit.caller.principal, why=form.get("why", ""), resume=False)
    return visit.go("/ui/fleet")


PAGES = (
    Page(path="/ui/fleet", handle=fleet_page),
    Page(path="/ui/fleet/pause", handle=pause, role="operate", method="POST"),
    Page(path="/ui/fleet/resume", handle=unpause, role="operate", method="POST"),
    Page(path="/ui/fleet/redrive", handle=redrive, role="operate", method="POST"),
)
