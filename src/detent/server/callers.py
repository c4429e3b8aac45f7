"""Who calls: tokens, what they allow, and the file that keeps them hashed.

Rule: nothing is open. A request without a valid token is refused before anything else is read of it, and a caller sees one tenant.
"""

from __future__ import annotations

import hmac
import os
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from detent.core.agent import Host
from detent.core.errors import ConfigError, Explained

__all__ = ["Caller", "Tokens", "by_jwt"]
Role = Literal["see", "run", "approve", "operate"]
"""see: read runs; run: start, answer and cancel them; approve: decide calls; operate: reopen, settle doubts, erase."""
ROLES: tuple[Role, ...] = get_args(Role)
PREFIX = "dt_"
"""What a token begins with, so that scanners of secrets find one."""


class Caller(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """An authenticated caller: the principal that the log names, its tenant, and what it may do."""

    principal: str
    tenant: str = ""
    scopes: tuple[str, ...] = ()
    roles: tuple[Role, ...] = ("see",)
    expires: datetime | None = None

    def __post_init__(self) -> None:
        if not self.principal.strip() or not self.principal.isprintable() or len(self.principal) > 200:
            raise ConfigError(f"principal {self.principal[:80]!r} must be 1 to 200 printable characters: the log names it")
        if wrong := [role for role in self.roles if role not in ROLES]:
            raise ConfigError(f"role {wrong[0]!r} is not known; choose from {', '.join(ROLES)}")
        if self.expires is not None and self.expires.tzinfo is None:
            raise ConfigError(f"the time {self.expires} has no zone; write 2026-12-31T00:00:00Z")

    @property
    def host(self) -> Host:
        """The host that the engine is given: the caller touches its tenant only."""
        return Host(tenant=self.tenant, principal=self.principal, scopes=self.scopes)


Authenticate = Callable[[str], "Caller | Awaitable[Caller | None] | None"]
"""Returns who a bearer token belongs to, None for nobody."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A token as the file keeps it: its digest, and whose it is."""

    name: str
    sha256: str
    caller: Caller


class _File(msgspec.Struct, frozen=True, kw_only=True):
    tokens: tuple[Kept, ...] = ()


class Tokens:
    """The tokens of one file. A changed file is read again at the next request, so a removed token is refused at once.

    A token has 256 random bits, so its SHA-256 tells nobody the token. Raises `ConfigError` for a file that cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._seen: tuple[int, int, int] = 0, 0, 0
        self._kept: dict[str, Kept] = {}

    def __call__(self, token: str) -> Caller | None:
        """Return the caller of a token; None for one that is unknown or has expired."""
        kept = self._read().get(digest := sha256(token.encode()).hexdigest())
        if kept is None or not hmac.compare_digest(kept.sha256, digest):
            return None
        return None if kept.caller.expires is not None and kept.caller.expires <= datetime.now(UTC) else kept.caller

    def list(self) -> Sequence[Kept]:
        """Return what the file keeps."""
        return tuple(self._read().values())

    def add(self, name: str, caller: Caller) -> str:
        """Make a token, keep its digest, and return it: nobody can read it again. Raise `ConfigError` for a name that is taken."""
        known = self._read()
        if any(kept.name == name for kept in known.values()):
            raise ConfigError(f"{self.path} has a token {name!r}; remove it first, or choose another name")
        token = PREFIX + secrets.token_urlsafe(32)
        made = Kept(name=name, sha256=sha256(token.encode()).hexdigest(), caller=caller)
        self._write((*known.values(), made))
        return token

    def remove(self, name: str) -> None:
        """Remove a token; raise `ConfigError` if there is none of this name."""
        known = self._read()
        left = tuple(kept for kept in known.values() if kept.name != name)
        if len(left) == len(known):
            raise ConfigError(f"{self.path} has no token {name!r}; it has: {', '.join(kept.name for kept in known.values()) or 'none'}")
        self._write(left)

    def _read(self) -> dict[str, Kept]:
        try:
            at = self.path.stat()
            if (seen := (at.st_ino, at.st_mtime_ns, at.st_size)) != self._seen:
                file = msgspec.json.decode(self.path.read_bytes(), type=_File)
                self._kept, self._seen = {kept.sha256: kept for kept in file.tokens}, seen
        except FileNotFoundError:
            self._kept, self._seen = {}, (0, 0, 0)
        except (OSError, msgspec.DecodeError, ConfigError) as error:
            raise ConfigError(
                f"the file of tokens {self.path} cannot be read ({error}); restore it, or make one with `detent tokens add`"
            ) from error
        return self._kept

    def _write(self, tokens: Sequence[Kept]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self.path.parent, delete=False) as new:  # mode 0600
            new.write(msgspec.json.format(msgspec.json.encode(_File(tokens=tuple(tokens)))))
            new.flush()
            os.fsync(new.fileno())
        try:
            Path(new.name).replace(self.path)
        except OSError:
            with suppress(OSError):
                Path(new.name).unlink()
            raise


def only(token: str, caller: Caller) -> Authenticate:
    """Accept one token, for a server without a file of tokens."""
    expected = sha256(token.encode()).digest()
    return lambda given: caller if hmac.compare_digest(sha256(given.encode()).digest(), expected) else None


def by_jwt(
    *,
    issuer: str,
    audience: str,
    keys: str,
    tenant: str = "tenant",
    roles: str = "roles",
    algorithms: Sequence[str] = ("RS256", "ES256", "EdDSA"),
) -> Authenticate:
    """Accept JSON Web Tokens of one issuer for one audience (PyJWT). `keys` is a JWKS: a file, or an https URL.

    `tenant` and `roles` name the claims with the tenant and the roles (`see`, `run`, `approve`, `operate`); `scope` gives the scopes, `sub` the
    principal. A token without the claim `tenant` is refused; with `tenant=""` all are of no tenant. Signature, issuer, audience and expiry are
    checked, and algorithms with a shared secret are never accepted. Raises `ConfigError`.
    """
    import jwt

    if wrong := [name for name in algorithms if name.startswith("HS") or name == "none"]:
        raise ConfigError(f"algorithm {wrong[0]} is not accepted for tokens of others; use one with a public key: RS256, ES256, EdDSA")
    if "://" in keys:
        if not keys.startswith("https://") and not keys.startswith(("http://127.0.0.1:", "http://localhost:")):
            raise ConfigError(f"the keys of {issuer} at {keys} come without TLS; anybody on the way could replace them: give an https URL")
        online = jwt.PyJWKClient(keys, cache_keys=True, timeout=5)
        key_of: Callable[[str], Any] = lambda token: online.get_signing_key_from_jwt(token).key  # noqa: E731
    else:
        try:
            known = jwt.PyJWKSet.from_json(Path(keys).read_text())
        except (OSError, jwt.PyJWTError) as error:
            raise ConfigError(f"the key set {keys} cannot be read: {error}") from error
        key_of = lambda token: known[jwt.get_unverified_header(token)["kid"]].key  # noqa: E731

    def authenticate(token: str) -> Caller | None:
        try:
            said: dict[str, Any] = jwt.decode(
                token,
                key_of(token),
                algorithms=list(algorithms),
                audience=audience,
                issuer=issuer,
                options={"require": ["exp", "sub", "iss", "aud"]},
            )
            given, of = said.get(roles, ()), said[tenant] if tenant else ""
            if tenant and not (isinstance(of, str) and of):
                return None  # a token of nobody's would be an operator's
            return Caller(
                principal=said["sub"],
                tenant=of,
                scopes=tuple(str(said.get("scope", "")).split()),
                roles=tuple(role for role in ROLES if role in (given.split() if isinstance(given, str) else given)),
                expires=datetime.fromtimestamp(said["exp"], UTC),
            )
        except (jwt.PyJWTError, KeyError, TypeError, ValueError, ConfigError, OverflowError):
            return None

    if "://" not in keys:
        return authenticate

    import asyncio

    async def fetched(token: str) -> Caller | None:
        return await asyncio.to_thread(authenticate, token)

    return fetched
