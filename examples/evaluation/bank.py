"""The tools of the clerk: an invoice, and paying it. What was paid is a line in paid.jsonl with the key of the call, so the bank can be asked."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from detent import ToolContext, tool
from detent.extend import Happened, NotHappened

HERE = Path(__file__).resolve().parent
PAID = HERE / "paid.jsonl"


@tool(side_effect="read")
def invoice(number: str) -> dict[str, Any]:
    """Return an invoice: who gets how much, in EUR."""
    with (HERE / "invoices.csv").open(encoding="utf-8", newline="") as file:
        return next({**row, "amount": int(row["amount"])} for row in csv.DictReader(file) if row["number"] == number)


def booked(key: str) -> Happened | NotHappened:
    """Say whether the bank knows a payment with this key."""
    for line in PAID.read_text(encoding="utf-8").splitlines() if PAID.exists() else ():
        if (payment := json.loads(line))["key"] == key:
            return Happened(payment["said"])
    return NotHappened("the bank has no payment with this key")


@tool(side_effect="write", reconcile=booked)
def pay(number: str, account: str, amount: int, context: ToolContext) -> str:
    """Pay an invoice. Each call moves money once more."""
    said = f"paid {amount} EUR to {account}"
    with PAID.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"key": context.idempotency_key, "number": number, "said": said}) + "\n")
    return said
