"""The tools of the demo: what is due, and paying it. A payment is a line in ledger.csv, which is all that a bank knows."""

from __future__ import annotations

import csv
import os
import time
from pathlib import Path

from detent import tool

HERE = Path(__file__).resolve().parent


@tool(side_effect="read")
def due() -> list[dict[str, str | int]]:
    """Return the invoices that are due: invoice, to, amount in EUR."""
    with (HERE / "invoices.csv").open(encoding="utf-8", newline="") as file:
        return [{**row, "amount": int(row["amount"])} for row in csv.DictReader(file)]


@tool(side_effect="write")
def pay(invoice: str, to: str, amount: int) -> str:
    """Pay an invoice. Each call moves money once more.

    Args:
        invoice: The number of the invoice.
        to: Who gets the money.
        amount: How much, in EUR.
    """
    ledger = Path(os.environ.get("DEMO_LEDGER", HERE / "ledger.csv"))
    with ledger.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file).writerow((invoice, to, amount))
    killed_here(ledger)
    return f"paid {amount} EUR to {to}"


def killed_here(ledger: Path) -> None:
    """Where the demo kills: the money is gone, and nobody has been told. Do nothing at any other time."""
    payments = len(ledger.read_text(encoding="utf-8").splitlines())
    if payments == int(os.environ.get("DEMO_KILL_AFTER", "0")):
        os.write(int(os.environ["DEMO_TELL"]), b".")
        time.sleep(3600)
