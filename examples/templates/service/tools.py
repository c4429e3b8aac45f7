"""The agent's tools. They work on files beside this one; put your own systems in their place."""

from __future__ import annotations

from pathlib import Path

from detent import ToolFailed, tool

CLOSED = Path(__file__).resolve().parent / "closed.txt"
ACCOUNTS = {"ann": "ann@example.com", "bob": "bob@example.com"}


@tool(side_effect="read")
def find_account(name: str) -> str:
    """Return the address of an account.

    Args:
        name: The name of its owner, in lower case.
    """
    if name not in ACCOUNTS:
        raise ToolFailed(f"there is no account of {name!r}")
    return ACCOUNTS[name]


@tool(side_effect="destructive")
def close_account(address: str) -> str:
    """Close an account for good. It is destructive, so a person is asked first.

    Args:
        address: The address of the account.
    """
    with CLOSED.open("a", encoding="utf-8") as file:
        file.write(f"{address}\n")
    return f"closed {address}"
