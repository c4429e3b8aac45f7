"""The same agent as a plain loop: the same tools and the same decisions. What it has done is a list in memory."""

from __future__ import annotations

from tools import due, pay

paid: list[str] = []
while todo := [one for one in due() if one["invoice"] not in paid]:
    print(pay(**todo[0]))
    paid.append(todo[0]["invoice"])
print(f"{len(paid)} invoices paid")
