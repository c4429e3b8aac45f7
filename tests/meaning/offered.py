"""The tools that the texts of these tests call: some only read, most do not; their parameters have the names that real ones have."""

from __future__ import annotations

import random
from typing import Any

from detent import tool
from detent.tools import Tool

Called = tuple[str, dict[str, Any]]

STRINGS = [
    "bob",
    "Anna",
    "acme-42",
    "a.txt",
    "notes/plan.md",
    "https://example.org/a?b=1&c=2",
    "two words",
    "it's fine",
    'he said "go"',
    "Grüße aus Köln",
    "東京",
    "line one\nline two",
    "not now",
    "really?",
    "a: b, c",
    "{x}",
    "[1]",
    "add(1)",
    "5",
    "true",
]
NAMES = STRINGS[:5]


def recorded(ran: list[Called]) -> list[Tool[..., Any]]:
    """Return the tools; each puts its name and what it was given on `ran`."""

    def took(name: str, **given: Any) -> str:
        ran.append((name, given))
        return "ok"

    @tool(side_effect="destructive")
    async def transfer(to: str, amount: int) -> str:
        """Pay somebody."""
        return took("transfer", to=to, amount=amount)

    @tool(side_effect="write")
    async def set_limits(minimum_price: float, maximum_price: float) -> str:
        """Set between which prices to buy."""
        return took("set_limits", minimum_price=minimum_price, maximum_price=maximum_price)

    @tool(side_effect="write")
    async def assign(contract_id: int, owner: str) -> str:
        """Make somebody the owner of a contract."""
        return took("assign", contract_id=contract_id, owner=owner)

    @tool(side_effect="write")
    async def send_mail(recipient: str, body: str, urgent: bool = False) -> str:
        """Send a mail."""
        return took("send_mail", recipient=recipient, body=body, urgent=urgent)

    @tool(side_effect="destructive")
    async def remove(path: str) -> str:
        """Remove a file."""
        return took("remove", path=path)

    @tool(side_effect="read")
    async def fetch(url: str) -> str:
        """Fetch a page."""
        return took("fetch", url=url)

    @tool(side_effect="read")
    async def search_notes(query: str, limit: int = 5) -> str:
        """Search the notes."""
        return took("search_notes", query=query, limit=limit)

    @tool(side_effect="none")
    async def add(a: float, b: float) -> str:
        """Add two numbers."""
        return took("add", a=a, b=b)

    @tool(side_effect="read")
    async def today() -> str:
        """Tell the date."""
        return took("today")

    def brought(name: str, side_effect: Any, schema: dict[str, Any]) -> Tool[..., Any]:
        whole = {"type": "object", "additionalProperties": False, **schema}
        return Tool.from_schema(
            name=name, description="", input_schema=whole, execute=lambda args: took(name, **args), side_effect=side_effect
        )

    move = brought(
        "move", "destructive", {"properties": {"from": {"type": "string"}, "to": {"type": "string"}}, "required": ["from", "to"]}
    )
    item = {
        "type": "object",
        "properties": {"sku": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["sku", "count"],
        "additionalProperties": False,
    }
    place_order = brought(
        "place_order",
        "write",
        {
            "properties": {"items": {"type": "array", "items": item}, "note": {"type": ["string", "null"]}, "gift": {"type": "boolean"}},
            "required": ["items"],
        },
    )
    return [transfer, set_limits, assign, send_mail, remove, fetch, search_notes, add, today, move, place_order]


def amount(chance: random.Random) -> int:
    """Return a whole number as people pay them."""
    return chance.choice([0, 1, 5, 42, 100, 2500, 10_000, -3, chance.randrange(10**6)])


def price(chance: random.Random) -> float:
    """Return a number with a fraction, mostly."""
    return chance.choice([0.5, 12.25, 99.99, 1e6 + 0.5, float(chance.randrange(500)), -0.25])


def wanted(chance: random.Random) -> Called:
    """Return a call with every argument right."""

    def text(*more: str) -> str:
        return chance.choice([*more, *NAMES] if chance.random() < 0.7 else STRINGS)

    made: dict[str, Any] = {
        "transfer": lambda: {"to": text(), "amount": amount(chance)},
        "set_limits": lambda: {"minimum_price": price(chance), "maximum_price": price(chance)},
        "assign": lambda: {"contract_id": amount(chance), "owner": text()},
        "send_mail": lambda: {"recipient": text(), "body": text(), **({"urgent": chance.random() < 0.5} if chance.random() < 0.5 else {})},
        "remove": lambda: {"path": text()},
        "fetch": lambda: {"url": text("https://example.org/?q=secret")},
        "search_notes": lambda: {"query": text(), **({"limit": chance.randrange(1, 20)} if chance.random() < 0.5 else {})},
        "add": lambda: {"a": price(chance), "b": price(chance)},
        "today": dict,
        "move": lambda: {"from": text(), "to": text()},
        "place_order": lambda: {
            "items": [{"sku": text(), "count": amount(chance)} for _ in range(chance.randrange(1, 3))],
            **({"note": text()} if chance.random() < 0.4 else {}),
            **({"gift": chance.random() < 0.5} if chance.random() < 0.4 else {}),
        },
    }
    # `transfer` most often: it is what must not go wrong
    name = chance.choice([*made, "transfer", "transfer", "fetch"])
    return name, made[name]()
