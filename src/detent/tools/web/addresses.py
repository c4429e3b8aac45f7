"""Decides which addresses and URLs a fetching tool may use. Names are resolved here, and the tool connects only to a checked address."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from fnmatch import fnmatchcase
from urllib.parse import SplitResult, urlsplit

from detent.core.errors import ConfigError, ToolFailed
from detent.tools.failures import failed, shown

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_CGNAT = ipaddress.IPv4Network("100.64.0.0/10")
_SITE_LOCAL = ipaddress.IPv6Network("fec0::/10")
_SPECIAL = (
    ipaddress.IPv4Network("192.0.0.0/24"),  # a cloud serves its metadata at .192
    ipaddress.IPv4Network("192.88.99.0/24"),
    ipaddress.IPv4Network("168.63.129.16/32"),  # the host of a virtual machine of Azure answers here
    ipaddress.IPv6Network("3fff::/20"),
)
"""Special-purpose ranges that `ipaddress` treats as public, in some or all versions of Python."""
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")
_UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")


class Pattern:
    """One entry of an allow-list: "host", "*.host" or "scheme://host[:port][/path*]". Default: both schemes and the usual port."""

    def __init__(self, text: str) -> None:
        scheme, found, rest = text.partition("://")
        scheme, rest = (scheme, rest) if found else ("", text)
        host, slash, path = rest.partition("/")
        name, colon, port = host.rpartition(":") if re.search(r":[0-9]+$", host) else (host, "", "")
        if scheme not in ("", *PORTS) or "@" in host or not re.fullmatch(r"\[[0-9a-f:.]+\]|(\*\.)?[a-z0-9_.-]+", name):
            raise ConfigError(
                f"allow: {text!r} is not a pattern; write 'api.example.com', '*.example.com' or 'https://example.com/path/*', in lower case"
            )
        try:
            name = str(ipaddress.IPv6Address(name[1:-1])) if name.startswith("[") else name
        except ValueError:
            raise ConfigError(f"allow: {text!r} does not contain a valid IPv6 address") from None
        self.text, self.scheme, self.host, self.port = text, scheme, name, int(port) if colon else None
        self.path = slash + path if path else "/*"

    def matches(self, url: SplitResult, host: str) -> bool:
        """Whether the pattern allows the URL. The path is compared as sent; a path with dots or encoded slashes matches only the path pattern *."""
        if self.scheme and url.scheme != self.scheme:
            return False
        if url_port(url) != (self.port if self.port is not None else PORTS[url.scheme]):
            return False
        name = self.host
        if name != host and not (name.startswith("*.") and host.endswith(name[1:]) and len(host) > len(name) - 1):
            return False
        path = url.path or "/"
        if self.path != "/*" and re.search(r"(^|/)\.{1,2}(/|$)|%2e|%2f|%5c|//", path, re.IGNORECASE):
            return False
        return fnmatchcase(path, self.path.replace("[", "[[]").replace("?", "[?]"))


def url_port(url: SplitResult) -> int:
    """Return the port of a URL."""
    return url.port if url.port is not None else PORTS[url.scheme]


def parse_url(text: str) -> tuple[SplitResult, str]:
    """Return the parts of an http(s) URL and its host in the form for resolving. Raise `ToolFailed` for an ambiguous URL."""
    if _UNSAFE.search(text) or len(text) > 8_000:
        raise failed("invalid_url", f"{shown(text)} contains spaces, control characters or backslashes, or is too long; encode them (%20)")
    try:
        url = urlsplit(text)
        port, name = url.port, url.hostname
    except ValueError as error:
        raise failed("invalid_url", f"{shown(text)} is not a URL: {error}") from None
    if url.scheme not in PORTS or not name or port == 0:
        raise failed("invalid_url", f"{shown(text)} is not an http or https URL with a host")
    if url.username is not None or url.password is not None or "@" in url.netloc:
        raise failed(
            "credentials_in_url", "a user name or password in a URL is refused, because it would be recorded in logs; leave it out"
        )
    return url, _lookup_name(name, text)


def _lookup_name(name: str, text: str) -> str:
    """Return a host name in the form for resolving: ASCII, lower case, no final dot. An address must have its usual form."""
    name = name.lower()
    if ":" in name and "%" not in name:
        try:
            return str(ipaddress.IPv6Address(name))
        except ValueError:
            raise failed("invalid_url", f"{shown(text)} has a host that is not an IPv6 address") from None
    try:
        name = name.encode("idna").decode("ascii") if not name.isascii() else name
    except UnicodeError:
        raise failed("invalid_url", f"{shown(text)} has a host that is not a domain name") from None
    name = name.removesuffix(".")
    labels = name.split(".")
    if not all(_LABEL.fullmatch(label) for label in labels):
        raise failed("invalid_url", f"{shown(text)} has a host that is not a domain name")
    if _NUMBER.fullmatch(labels[-1]):
        # "2130706433", "0x7f.1", "0177.0.0.1": programs read these differently, so only the usual form of an address is accepted
        try:
            return str(ipaddress.IPv4Address(name))
        except ValueError:
            raise failed("invalid_url", f"{shown(text)} writes an address in an unusual form; write it as four decimal numbers") from None
    return name


def networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Return address ranges such as "127.0.0.1/32". Raise `ConfigError`, which names the invalid one."""
    try:
        return tuple(ipaddress.ip_network(text) for text in texts)
    except ValueError as error:
        raise ConfigError(f"allow_private: {error}; write ranges such as '127.0.0.1/32'") from None


def why_refused(address: Address, allowed: Sequence[Network]) -> str:
    """Return why nothing may be fetched from `address`, or "" if it is public or in an allowed range."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in _NAT64 or (int(address) >> 32 == 0 and int(address) > 1):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            why = why_refused(inner, allowed)
            return f"it stands for {inner}, which is {why}" if why else ""
        if int(address) >> 32 & 0xFCFFFFFF == 0x5EFE:  # ISATAP (RFC 5214): with any prefix, it leads to the embedded address
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
            if why := why_refused(inner, allowed):
                return f"it stands for {inner}, which is {why}"
    if any(address in network for network in allowed if network.version == address.version):
        return ""
    kinds = (
        ("loopback", address.is_loopback),
        ("link-local (where clouds keep their metadata)", address.is_link_local),
        ("multicast", address.is_multicast),
        ("unspecified", address.is_unspecified),
        ("shared by a provider's customers", address.version == 4 and address in _CGNAT),
        ("private", address.is_private or (address.version == 6 and address in _SITE_LOCAL)),
        ("reserved", address.is_reserved or not address.is_global or any(address in network for network in _SPECIAL)),
    )
    return next((kind for kind, found in kinds if found), "")


async def resolve(host: str, port: int, allowed: Sequence[Network]) -> list[str]:
    """Return the addresses of `host`, all checked. Raise `ToolFailed` if there is none, or if one is refused."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise failed("name_not_resolved", f"the name {shown(host)} has no address: {error}") from None
    addresses = list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))
    for text in addresses:
        why = why_refused(ipaddress.ip_address(text), allowed)
        if why:
            raise refused_address(host, text, why)
    return addresses


def refused_address(host: str, address: str, why: str) -> ToolFailed:
    """Return the error for an address that nothing may be fetched from."""
    same = f"{shown(host)}" if host == address else f"{shown(host)} leads to {address}, which"
    return failed("address_refused", f"{same} is {why}; only public addresses are fetched from. A person can allow this one: allow_private")
