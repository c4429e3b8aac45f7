"""Hides passwords in the URLs of stores and memories before they are shown."""

from __future__ import annotations


def without_password(url: str) -> str:
    """Return a URL of a store or memory that may be shown: without the passwords of a server, even if the scheme is misspelt."""
    scheme, _, rest = url.partition("://")
    if scheme.partition(":")[0] in ("ram", "file", "sqlite") or ("@" not in url and "password" not in url):
        return url
    if not rest:  # without slashes or colon, the text before the last @ may be the password
        scheme, rest = "...", url.rpartition("@")[2]
    base, _, query = rest.partition("?")
    if "@" in rest and "@" not in base:  # a password with a question mark: nothing after it can be told from it
        base, query = rest, ""
    user, at, place = base.rpartition("@")
    told = "&".join(part for part in query.split("&") if part and "password" not in part.partition("=")[0])
    return f"{scheme}://{user.partition(':')[0]}{at}{place.partition('?')[0]}" + (f"?{told}" if told else "")
