"""Authorises requests to servers over HTTP: OAuth 2.1, with the SDK's client providers.

A run asks nobody: it uses the token of an earlier login, and refreshes it under a lock at the authorisation server that issued it. It does not follow
what the MCP server says about authorisation servers. Only a login (`login`) discovers and registers. If this program itself is the client (the two
machine grants), tokens are fetched when needed and kept only in memory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, TokenStorage
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
    TokenEndpointAuthMethod,
)
from mcp.shared.auth_utils import calculate_token_expiry
from pydantic import AnyUrl, BaseModel

from detent.core.errors import ConfigError
from detent.tools.mcp.kept import Authorisation, Kept
from detent.tools.mcp.secrets import Resolved, Secrets
from detent.tools.mcp.settings import McpServer, OAuth

EARLY_S = 30.0
"""How long before its expiry a token is refreshed, in seconds."""
EXCHANGE_S = 30.0
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def authorisation_of(server: McpServer, resolved: Resolved, kept: Kept) -> httpx2.Auth | None:
    """Return what authorises the requests to a server. None if there is no login, or if a header does it."""
    said = resolved.oauth
    if not resolved.url or any(name.lower() == "authorization" for name in resolved.headers):
        return None
    if said is not None and said.grant != "authorization_code":
        return _machine(resolved.url, said)
    if kept.authorisation(server, resolved.url) is None:
        return None
    return LoggedIn(server, resolved, kept)


class Memory(TokenStorage):
    """Tokens of this process only, in memory."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None
        self.client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """See `TokenStorage`."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """See `TokenStorage`."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """See `TokenStorage`."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """See `TokenStorage`."""
        self.client = client_info


def need_of_the_sdk(kind: type, *names: str) -> None:
    """Raise `ConfigError` if a class of the installed SDK lacks one of these methods, because its replacement would not be called."""
    if missing := [name for name in names if not hasattr(kind, name)]:
        raise ConfigError(
            f"mcp {version('mcp')} has no {kind.__name__}.{missing[0]}, which this program overrides for its rules; nothing was sent. "
            "Install a release that has it: pip install 'mcp>=2.3,<2.4'"
        )


class LoggedIn(OAuthClientProvider):
    """Authorises requests with the result of a login."""

    def __init__(self, server: McpServer, resolved: Resolved, kept: Kept) -> None:
        need_of_the_sdk(OAuthClientProvider, "_auth_flow", "_refresh_token", "_handle_refresh_response")
        super().__init__(resolved.url, metadata_of([]), Memory())
        self._server, self._kept, self._url = server, kept, resolved.url
        self._secrets: Secrets = resolved.secrets
        self._read = Authorisation(url=self._url)

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if not same_origin(str(request.url), self._url):
            yield request
            return
        self.context.protocol_version = request.headers.get("mcp-protocol-version")
        self._take_up()
        if self._read.expires_at is not None and time.time() > self._read.expires_at - EARLY_S:
            async with self._alone() as used:
                if used == self._token() and self.context.can_refresh_token():
                    await self._handle_refresh_response((yield await self._refresh_token()))
        used = self._authorised(request)
        response = yield request
        if response.status_code == 401 and used:
            async with self._alone():
                if used == self._token() and self.context.can_refresh_token():
                    await self._handle_refresh_response((yield await self._refresh_token()))
            if self._token() and used != self._token():
                self._authorised(request)
                response = yield request
        if response.status_code == 403 and extract_field_from_www_auth(response, "error") == "insufficient_scope":
            async with self._alone():
                wanted = extract_scope_from_www_auth(response) or ""
                self._kept.authorise(self._server, _with(self._read, wanted=wanted))

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncGenerator[str]:
        """Hold the lock of the stored login and read it again. Yield the token that was known before."""
        before = self._token()
        async with self._kept.alone(self._server, self._url):
            self._take_up()
            yield before

    def _take_up(self) -> None:
        """Read the stored login again: another process may have refreshed it, or somebody has logged in again."""
        self._read = self._kept.authorisation(self._server, self._url) or Authorisation(url=self._url)
        read, context = self._read, self.context
        context.current_tokens = OAuthToken.model_validate(read.tokens) if read.tokens else None
        context.client_info = OAuthClientInformationFull.model_validate(read.client) if read.client else None
        context.oauth_metadata = OAuthMetadata.model_validate(read.issuer_metadata) if read.issuer_metadata else None
        resource = read.resource_metadata
        context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(resource) if resource else None

    def _token(self) -> str:
        tokens = self.context.current_tokens
        return tokens.access_token if tokens is not None else ""

    def _authorised(self, request: httpx2.Request) -> str:
        """Give the request the token, and return it."""
        token = self._token()
        if token:
            self._secrets.add(token)
            request.headers["Authorization"] = f"Bearer {token}"
        return token

    async def _refresh_token(self) -> httpx2.Request:
        request = await super()._refresh_token()
        refuse_insecure(str(request.url), self._url)
        return request

    async def _handle_refresh_response(self, response: httpx2.Response) -> bool:
        before = self.context.current_tokens
        done = await super()._handle_refresh_response(response)
        if done:
            self._read = _with(self._read, tokens=self.context.current_tokens)
            self._kept.authorise(self._server, self._read)
        else:
            self.context.current_tokens = before
        return done


def _with(read: Authorisation, *, tokens: OAuthToken | None = None, wanted: str = "") -> Authorisation:
    if tokens is None:
        return msgspec.structs.replace(read, wanted=wanted)
    return msgspec.structs.replace(read, tokens=dumped(tokens), expires_at=calculate_token_expiry(tokens.expires_in))


def dumped(model: BaseModel) -> dict[str, Any]:
    """Return a model of the SDK's as JSON data."""
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def metadata_of(redirect_uris: list[str], method: TokenEndpointAuthMethod | None = None) -> OAuthClientMetadata:
    """Return the client metadata for a registration."""
    uris = [AnyUrl(uri) for uri in redirect_uris] or None
    return OAuthClientMetadata(redirect_uris=uris, client_name="Detent", token_endpoint_auth_method=method)


def same_origin(url: str, other: str) -> bool:
    """Return whether two URLs have the same scheme, host and port."""
    one, two = httpx2.URL(url), httpx2.URL(other)
    return (one.scheme, one.host, one.port) == (two.scheme, two.host, two.port)


def refuse_insecure(url: str, server_url: str) -> None:
    """Raise `OAuthFlowError` for an endpoint that must not get secrets: one without TLS that is not on this machine."""
    parts = urlsplit(url)
    if parts.scheme != "https" and (parts.scheme != "http" or parts.hostname not in LOOPBACK):
        raise OAuthFlowError(
            f"{server_url} leads to {parts.scheme}://{parts.netloc} for its authorisation, which is not https; nothing was sent there"
        )


def _machine(url: str, said: OAuth) -> httpx2.Auth:
    """Return the provider that fetches tokens for this program. The issuer is always that of the settings, not one that the MCP server names."""
    from mcp.client.auth.extensions import client_credentials, identity_assertion

    scope = said.scope or None
    if said.grant == "identity_assertion":
        return identity_assertion.IdentityAssertionOAuthProvider(
            url, Memory(), said.client_id, said.client_secret, said.issuer, _exchanged(said), scope, "client_secret_basic"
        )
    if said.private_key:
        signed = client_credentials.SignedJWTParameters(
            issuer=said.client_id, subject=said.client_id, signing_key=said.private_key, signing_algorithm=_algorithm(said.private_key)
        )
        assertions = signed.create_assertion_provider()
        return client_credentials.PrivateKeyJWTOAuthProvider(url, Memory(), said.client_id, assertions, scope, said.issuer)
    return client_credentials.ClientCredentialsOAuthProvider(
        url, Memory(), said.client_id, said.client_secret, scope=scope, issuer=said.issuer
    )


def _algorithm(private_key: str) -> str:
    """Return the signature algorithm of a key. Raise `ConfigError` for a text that is not a private key."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(private_key.encode(), None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"oauth.private_key: not a private key in PEM without a password: {type(error).__name__}") from None
    match key:
        case rsa.RSAPrivateKey():
            return "RS256"
        case ec.EllipticCurvePrivateKey():
            return {256: "ES256", 384: "ES384", 521: "ES512"}[key.curve.key_size]
        case ed25519.Ed25519PrivateKey():
            return "EdDSA"
        case _:
            raise ConfigError(f"oauth.private_key: a {type(key).__name__} cannot sign assertions; give an RSA, EC or Ed25519 key")


def _exchanged(said: OAuth) -> Callable[[str, str], Awaitable[str]]:
    """Return a function that exchanges the identity token at its provider for an assertion for one server (RFC 8693)."""

    async def assertion(audience: str, resource: str) -> str:
        refuse_insecure(said.id_token_endpoint, resource)
        asked = {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requested_token_type": "urn:ietf:params:oauth:token-type:id-jag",
            "audience": audience,
            "resource": resource,
            "subject_token": said.id_token,
            "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
            "client_id": said.id_client_id,
        }
        async with httpx2.AsyncClient(timeout=EXCHANGE_S) as client:
            answer = await client.post(said.id_token_endpoint, data=asked)
        if answer.status_code != 200:
            raise OAuthFlowError(f"the identity provider answered HTTP {answer.status_code}; is id_token still valid?")
        return str(answer.json()["access_token"])

    return assertion
