"""A login at a server over HTTP: discovery, registration and a visit in a person's browser, with the SDK. The result is stored.

The browser returns to a port of 127.0.0.1 with a code. Only the answer with the state of this login is accepted. Any other request to that port is
refused, and the login keeps waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import msgspec
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider, OAuthFlowError
from mcp.client.auth.utils import issuers_match, union_scopes
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp.shared.auth_utils import calculate_token_expiry

from detent.core.errors import ConfigError
from detent.tools.mcp.authorisation import Memory, dumped, metadata_of, need_of_the_sdk, refuse_insecure
from detent.tools.mcp.connection import Connection, Unreachable
from detent.tools.mcp.kept import Authorisation, Kept
from detent.tools.mcp.secrets import Resolved
from detent.tools.mcp.settings import McpServer, OAuth

LOGIN_S = 300.0
"""How long a person may take, in seconds."""
LONGEST = 16_384
PATH = "/callback"
_DONE = "<!doctype html><title>Detent</title><p>You are logged in. You can close this page and return to the terminal."
_REFUSED = "<!doctype html><title>Detent</title><p>The login was refused. You can close this page and return to the terminal."
_FOREIGN = "<!doctype html><title>Detent</title><p>This is not the answer that a login waits for."


async def log_in(name: str, server: McpServer, kept: Kept, *, visit: Callable[[str], None], timeout_s: float = LOGIN_S) -> Path | None:
    """Log in at a server and return where the login is stored. None if the server does not ask for a login.

    `visit` gets the address that a person must open. Raise `ConfigError` with the problem.
    """
    resolved = Resolved(name, server)
    said = resolved.oauth or OAuth()
    if not server.url:
        raise ConfigError(f"MCP server {name!r} is a program, which does not use a login; give it credentials in env")
    if said.grant != "authorization_code":
        raise ConfigError(f"MCP server {name!r}: oauth.grant = {said.grant!r} needs no login; a run fetches its token itself")
    if any(header.lower() == "authorization" for header in server.headers):
        raise ConfigError(f"MCP server {name!r}: its headers have Authorization; remove it to log in instead")
    before = kept.authorisation(server, resolved.url)
    async with _listening(said.redirect_port) as back:
        provider = Login(resolved.url, said, back, visit, wanted=before.wanted if before is not None else "")
        patient = msgspec.structs.replace(server, start_timeout_s=timeout_s)
        connection = Connection(name, patient, workspace=None, on_tools=lambda _: None, kept=kept, auth=provider)
        try:
            await connection.open()
        except Unreachable as error:
            raise ConfigError(f"the login failed: {error}") from None
        finally:
            await connection.close()
    if provider.result is None:
        return None
    async with kept.alone(server, resolved.url):
        return kept.authorise(server, provider.result)


class Back:
    """The address that the browser returns to (`uri`). `state` is that of the login."""

    def __init__(self) -> None:
        self.uri, self.state = "", ""
        self.answer: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                status, page = self._taken(head.split(b"\r\n", 1)[0].decode("ascii", "replace"))
                body = page.encode()
                writer.write(
                    f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\n"
                    "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n".encode()
                    + body
                )
                await writer.drain()
        writer.close()

    def _taken(self, line: str) -> tuple[str, str]:
        method, _, rest = line.partition(" ")
        target = urlsplit(rest.rpartition(" ")[0])
        found = {name: values[0] for name, values in parse_qs(target.query).items() if len(values) == 1}
        if method != "GET" or target.path != PATH or not self.state or found.get("state") != self.state:
            return "404 Not Found", _FOREIGN
        if not self.answer.done():
            self.answer.set_result(found)
        return "200 OK", _DONE if found.get("code") else _REFUSED


@contextlib.asynccontextmanager
async def _listening(port: int) -> AsyncGenerator[Back]:
    back = Back()
    try:
        server = await asyncio.start_server(back.serve, "127.0.0.1", port, limit=LONGEST)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on port {port} of 127.0.0.1 ({error.strerror}); end the program that uses it, or change oauth.redirect_port"
        ) from None
    async with server:
        back.uri = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{PATH}"
        yield back


def _elsewhere(issuer: str) -> str:
    return f"the server leads to another authorisation server than oauth.issuer = {issuer!r}; nothing was sent there"


class Login(OAuthClientProvider):
    """The SDK's provider, for one login; `result` is its result."""

    def __init__(self, url: str, said: OAuth, back: Back, visit: Callable[[str], None], *, wanted: str) -> None:
        need_of_the_sdk(
            OAuthClientProvider,
            "_initialize",
            "_select_authorization_server",
            "_expected_issuer",
            "_perform_authorization",
            "_handle_token_response",
        )
        super().__init__(
            url, metadata_of([back.uri]), Memory(), self._show, self._wait, client_metadata_url=said.client_metadata_url or None
        )
        self._said, self._back, self._visit, self._wanted = said, back, visit, wanted
        self.result: Authorisation | None = None

    async def _initialize(self) -> None:
        self._initialized = True
        said = self._said
        if said.client_id and self.context.client_info is None:
            self.context.client_info = OAuthClientInformationFull(
                client_id=said.client_id,
                client_secret=said.client_secret or None,
                redirect_uris=self.context.client_metadata.redirect_uris,
                token_endpoint_auth_method="none",
                issuer=said.issuer or None,
            )

    def _select_authorization_server(self, advertised: list[str]) -> str:
        issuer = self._said.issuer
        found = [server for server in advertised if not issuer or issuers_match(server, issuer)]
        if not found:
            raise OAuthFlowError(_elsewhere(issuer))
        return found[0]

    def _expected_issuer(self) -> str:
        """The expected issuer in the metadata. For a server without resource metadata it is the one that the operator names, whatever its origin."""
        return self.context.auth_server_url or self._said.issuer or super()._expected_issuer()

    async def _perform_authorization(self) -> httpx2.Request:
        context, said = self.context, self._said
        metadata, client = context.oauth_metadata, context.client_info
        if said.issuer and (metadata is None or not issuers_match(str(metadata.issuer), said.issuer)):
            raise OAuthFlowError(_elsewhere(said.issuer))
        if client is not None and client.client_id == said.client_id and said.client_secret:
            taken = (metadata.token_endpoint_auth_methods_supported if metadata is not None else None) or ["client_secret_basic"]
            client.token_endpoint_auth_method = "client_secret_basic" if "client_secret_basic" in taken else "client_secret_post"
        asked = union_scopes(context.client_metadata.scope, said.scope or None)
        context.client_metadata.scope = union_scopes(asked, self._wanted or None)
        refuse_insecure(self._get_token_endpoint(), context.server_url)
        return await super()._perform_authorization()

    async def _show(self, url: str) -> None:
        refuse_insecure(url, self.context.server_url)
        self._back.state = parse_qs(urlsplit(url).query)["state"][0]
        self._visit(url)

    async def _wait(self) -> AuthorizationCodeResult:
        found = await self._back.answer
        if not found.get("code"):
            raise OAuthFlowError(
                f"the authorisation server refused: {found.get('error_description') or found.get('error') or 'no reason given'}"
            )
        return AuthorizationCodeResult(code=found["code"], state=found.get("state"), iss=found.get("iss"))

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        await super()._handle_token_response(response)
        context = self.context
        tokens: OAuthToken | None = context.current_tokens
        client, metadata, resource = context.client_info, context.oauth_metadata, context.protected_resource_metadata
        if tokens is not None:
            self.result = Authorisation(
                url=context.server_url,
                tokens=dumped(tokens),
                expires_at=calculate_token_expiry(tokens.expires_in),
                client=dumped(client) if client is not None else None,
                issuer_metadata=dumped(metadata) if metadata is not None else None,
                resource_metadata=dumped(resource) if resource is not None else None,
            )
