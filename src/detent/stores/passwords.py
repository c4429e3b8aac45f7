"""Passwords in the URLs of stores: they are used, and never shown."""

from __future__ import annotations


def without_password(url: str) -> str:
    """Return a store's URL as it may be shown: that of a server without its passwords, also where the scheme is misspelt."""
    scheme, _, rest = url.partition("://")
    if scheme.partition(":")[0] in ("ram", "file", "sqlite") or ("@" not in url and "password" not in url):
        return url
    if not rest:  # the slashes or the colon are missing: what stands before the last @ may be the password
        scheme, rest = "...", url.rpartition("@")[2]
    base, _, query = rest.partition("?")
    if "@" in rest and "@" not in base:  # a password with a question mark: then nothing after it is told from it
        base, query = rest, ""
    user, at, place = base.rpartition("@")
    told = "&".join(part for part in query.split("&") if part and "password" not in part.partition("=")[0])
    return f"{scheme}://{user.partition(':')[0]}{at}{place.partition('?')[0]}" + (f"?{told}" if told else "")
