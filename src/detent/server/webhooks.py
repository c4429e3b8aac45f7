"""Webhooks: who is told what happens to runs. Messages are signed as Standard Webhooks say.

Rule: receivers come from the configuration only, and every address is https or this machine.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec

from detent.config.tables import read_toml, take
from detent.core.errors import ConfigError, Explained
from detent.ports.options import check_fields

Kind = Literal["waiting", "finished", "failed"]
KINDS: tuple[Kind, ...] = get_args(Kind)
LOOPBACK = ("127.0.0.1", "localhost", "::1")
PREFIX = "whsec_"


class Webhook(msgspec.Struct, metaclass=Explained, frozen=True, kw_only=True):
    """A receiver. Each secret (`whsec_...`, base64) signs: with two of them, the receiver can change over from one to the other.

    `secrets_from` names environment variables with more of them. `tenant`: whose runs, None for those of all. `link` is where people reach this server,
    such as https://agents.example.org; without it, messages have no links.
    """

    url: str
    secrets: tuple[str, ...] = ()
    secrets_from: tuple[str, ...] = ()
    events: tuple[Kind, ...] = KINDS
    tenant: str | None = None
    link: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        for name, url in (("url", self.url), ("link", self.link)):
            parts = urlsplit(url)
            if url and (parts.scheme not in ("https", "http") or (parts.scheme == "http" and parts.hostname not in LOOPBACK)):
                raise ConfigError(f"webhook: {name} is {url[:120]!r}; write an https URL (http only to this machine)")
        if not self.url or urlsplit(self.url).username:
            raise ConfigError(f"webhook: url is {self.url[:120]!r}; write an https URL without a password")
        if not self.secrets and not self.secrets_from:
            raise ConfigError(
                f"webhook {self.url}: give secrets, or the names of variables with them in secrets_from: receivers check the signature"
            )
        for secret in self.secrets:
            key_of(secret, self.url)

    @property
    def id(self) -> str:
        """What tells it from other receivers in the store."""
        return sha256(f"{self.url}\0{self.tenant}".encode()).hexdigest()[:16]

    def keys(self) -> Sequence[bytes]:
        """Return the keys that sign. Raise `ConfigError` for a variable that is not set."""
        found = [*self.secrets]
        for name in self.secrets_from:
            if not (secret := os.environ.get(name, "")):
                raise ConfigError(f"webhook {self.url}: the environment has no {name}; set it to a secret, whsec_...")
            found.append(secret)
        return [key_of(secret, self.url) for secret in found]

    def signed(self, message_id: str, body: bytes, now: datetime) -> Mapping[str, str]:
        """Return the headers of a message, with a signature by each secret."""
        at = str(int(now.timestamp()))
        content = b".".join((message_id.encode(), at.encode(), body))
        signatures = [base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in self.keys()]
        return {
            "webhook-id": message_id,
            "webhook-timestamp": at,
            "webhook-signature": " ".join(f"v1,{signature}" for signature in signatures),
            "content-type": "application/json",
        }


def key_of(secret: str, url: str) -> bytes:
    """Return the key in a secret. Raise `ConfigError`, which does not show it."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not 24 <= len(key) <= 64 or not secret.startswith(PREFIX):
        raise ConfigError(f"webhook {url}: a secret is {PREFIX} and 24 to 64 bytes in base64; make one: `openssl rand -base64 32`")
    return key


class _File(msgspec.Struct, frozen=True, kw_only=True):
    webhook: tuple[dict[str, Any], ...] = ()


def webhooks_in(path: Path) -> tuple[Webhook, ...]:
    """Return the receivers of a file with tables `[[webhook]]`. Raise `ConfigError`."""
    tables = take(read_toml(path, "file of webhooks"), _File, str(path)).webhook
    found = tuple(take(table, Webhook, str(path), "webhook.") for table in tables)
    if len({one.id for one in found}) < len(found):
        raise ConfigError(f"{path}: two webhooks have the same url and tenant; make them one")
    for one in found:
        one.keys()
    return found
