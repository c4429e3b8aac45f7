"""Lists what the files of a directory ask for: imports, started programs, and what is sent, read, opened or decided. Nothing of it is done here.

Files are read only as TOML, so you can see the list before anything happens. Mistakes in a file are skipped here: `loading` refuses the file, so
nothing of it happens either.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from hashlib import file_digest, sha256
from itertools import islice
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec

from detent.config.engines import Config, is_code
from detent.config.tables import place_of
from detent.core.errors import ConfigError
from detent.expressions.display import clean
from detent.ports.governing_files import governs
from detent.tools.mcp.secrets import REFERENCE

CONFIG_NAME = "detent.toml"
ALWAYS_READ = frozenset(("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"))
"""The variables that every MCP server program always gets."""
NAMING = ("tools", "guards", "strategy", "kernel", "phases", "compaction")
"""The keys of an agent file that take import paths as well as names."""
_LOCAL_STORES = ("sqlite", "file", "ram")
_REMEMBERED = "what agents remember is kept and found at"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_KEPT = 200_000
"""How many bytes of a file are kept, to show later what changed in it."""
MOST_FILES = 10_000
"""The maximum number of files below the import roots of a trusted configuration."""


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that a file asks for: its key, what happens in words, and the environment variables that it reads."""

    file: Path
    key: str
    does: Literal["import", "start", "send", "read", "open", "decide"]
    what: str
    variables: tuple[str, ...] = ()

    def line(self, width: int = 0) -> str:
        """Return the demand as one line. The key takes `width` characters. Characters that could control a terminal are escaped."""
        names = ", ".join(f"${name}" for name in self.variables)
        return clean(f"{self.does:<6}  {self.key:<{width}}  {self.what}" + (f"; reads {names}" if names else ""))


class Content(msgspec.Struct, frozen=True):
    """The content of a file: its digest and its text. A long text is cut."""

    digest: str
    text: str


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of one directory ask for, with these files and the files that they name. `files` holds None for a missing file."""

    directory: Path
    demands: tuple[Demand, ...]
    files: dict[str, Content | None]

    @property
    def digest(self) -> str:
        """The digest of all files, with their names relative to the directory."""
        each = [f"{name}\0{content.digest if content else ''}\n" for name, content in sorted(self.files.items())]
        return sha256("".join(each).encode("utf-8", "surrogateescape")).hexdigest()

    def lines(self) -> list[str]:
        """Return the demands, file by file."""
        width = min(32, max((len(demand.key) for demand in self.demands), default=0))
        found: list[str] = []
        for file in dict.fromkeys(demand.file for demand in self.demands):
            found.append(f"  {clean(_seen_from(self.directory, file) if file.is_relative_to(self.directory) else str(file))}")
            found += [f"    {demand.line(width)}" for demand in self.demands if demand.file == file]
        return found

    def texts(self) -> dict[str, str]:
        """Return the files as texts to keep. A long text is cut."""
        return {name: content.text for name, content in self.files.items() if content is not None}


def home_of_config(file: Path) -> Path:
    """Return the directory that holds a configuration file; its paths are relative to it."""
    return file.parent.resolve()


def home_of_agent(file: Path) -> Path:
    """Return the directory that holds an agent file; its paths are relative to it."""
    return file.resolve().parent


def listing(directory: Path, *, others: Iterable[Demand] = ()) -> Listing:
    """Return what the files of a directory ask for. `others` are demands from elsewhere, such as a log."""
    home = directory.resolve()
    configs, agents = _governing(home, {demand.file for demand in others})
    demands = [demand for file in configs for demand in config_demands(file)]
    demands += [demand for file in agents for demand in agent_demands(file)]
    demands += [demand for demand in others if demand not in demands]
    files: dict[str, Content | None] = {}
    for file in (*configs, *agents):
        table = _table_in(file)
        for named in (file, *_named_by(table, home)):
            files[_seen_from(home, named)] = _content_of(named)
    return Listing(directory=home, demands=tuple(demands), files=files)


def _governing(home: Path, used: set[Path]) -> tuple[list[Path], list[Path]]:
    """Return the configuration and agent files of a directory. A `used` file counts under any name."""
    configs: list[Path] = []
    agents: list[Path] = []
    try:
        beside = sorted(path for path in home.iterdir() if path.suffix == ".toml")
    except OSError:
        beside = []
    for file in dict.fromkeys((*beside, *sorted(path for path in used if path.parent == home))):
        table = _table_in(file)
        if "name" in table and file.name != CONFIG_NAME:
            agents.append(file)
        elif file.name == CONFIG_NAME or (table and set(table) <= set(Config.__struct_fields__)):
            configs.append(file)
    return configs, agents


# What files ask for -------------------------------------------------------------------------------------------------------------------


def config_demands(file: Path, *, without: Iterable[str] = ()) -> tuple[Demand, ...]:
    """Return what a configuration file asks for, leaving out the keys `without`."""
    table = {key: value for key, value in _table_in(file).items() if key not in without}
    return tuple(_of_config(_placed(file), table, home_of_config(file)))


def agent_demands(file: Path) -> tuple[Demand, ...]:
    """Return what an agent file, or a table `[agents.NAME]` of a configuration file, asks for."""
    return tuple(_of_agent(place_of(file)[0].resolve(), _table_in(file), home_of_agent(file)))


def _placed(file: Path) -> Path:
    return file.parent.resolve() / file.name


def _of_config(file: Path, table: Mapping[str, Any], home: Path) -> Iterator[Demand]:
    for key in ("tools", "planner", "observers"):
        for path in _texts(table.get(key)):
            yield Demand(file=file, key=key, does="import", what=path)
    for path in _texts(table.get("import_roots")):
        yield Demand(file=file, key="import_roots", does="import", what=f"modules in {path}")
    policy: Any = table.get("policy")
    if isinstance(policy, str) and not policy.endswith(".toml"):
        yield Demand(file=file, key="policy", does="import", what=policy)
    else:
        yield from _own_policy(file, policy)
    yield from _servers(file, table.get("mcp"))
    for name, said in _table(table.get("secrets")).items():
        kind, _, rest = str(said).partition(":")
        yield Demand(
            file=file, key=f"secrets.{name}", does="read", what=f"{rest}, for tools" if kind == "file" else "for tools",
            variables=(rest,) if kind == "env" else (),
        )  # fmt: skip
    store: Any = table.get("store")
    url: Any = store if isinstance(store, str) else _table(store).get("url")
    yield from _kept_at(file, "store.url", url, "runs are kept and found at")
    memory: Any = table.get("memory")
    yield from _kept_at(file, "memory.url", memory if isinstance(memory, str) else _table(memory).get("url"), _REMEMBERED)
    for name, place in _table(_table(memory).get("stores")).items():
        yield from _kept_at(file, f"memory.stores.{name}", place, _REMEMBERED)
    workspace: Any = table.get("workspace")
    opened = {"root": workspace} if isinstance(workspace, str) else _table(workspace)
    yield from _opened(file, "workspace.", opened, home)
    for part in ("embedder", "transcriber"):
        yield from _server_of_model(file, f"models.{part}", _table(table.get("models")).get(part))
    for name, said in _table(table.get("agents")).items():
        yield from _below(f"agents.{name}.", _of_agent(file, _table(said), home))
    yield from _passed_on(file, _table(table.get("worker")))
    http = _table(table.get("http"))
    for key in ("allow", "allow_private"):
        for place in _texts(http.get(key)):
            yield Demand(file=file, key=f"http.{key}", does="send", what=f"requests of agents may go to {place}")


def _passed_on(file: Path, worker: Mapping[str, Any]) -> Iterator[Demand]:
    host = worker.get("host")
    if host == "restate":
        said = _table(worker.get("restate"))
        places = [str(said[key]) for key in ("ingress", "admin") if key in said] or ["a Restate server of this machine"]
        yield Demand(
            file=file, key="worker.host", does="send", what=f"the ids of runs go to {' and '.join(places)}, which says when runs continue"
        )
        if "bind" in said:
            yield Demand(file=file, key="worker.restate.bind", does="open", what=f"workers listen at {said['bind']}")
    elif isinstance(host, str) and host != "in_process":
        yield Demand(file=file, key="worker.host", does="import", what=host)


def _kept_at(file: Path, key: str, url: Any, what: str) -> Iterator[Demand]:
    if isinstance(url, str) and is_code(url):
        yield Demand(file=file, key=key, does="import", what=url)
    elif isinstance(url, str) and url:
        local = url.partition(":")[0] in _LOCAL_STORES
        yield Demand(file=file, key=key, does="open" if local else "send", what=f"{what} {url if local else _without_password(url)}")


def _of_agent(file: Path, table: Mapping[str, Any], home: Path) -> Iterator[Demand]:
    for key in NAMING:
        for path in _named(table, key):
            if ":" in path:
                yield Demand(file=file, key=key, does="import", what=path)
    for place in _texts(table.get("skills")):
        if not (home / Path(place)).resolve().is_relative_to(home):
            yield Demand(file=file, key="skills", does="read", what=f"instructions, and the files beside them, in {place}")
    yield from _own_policy(file, table.get("policy"))
    yield from _checks(file, table.get("verify"))
    yield from _servers(file, table.get("mcp"))
    yield from _opened(file, "", {"root": table.get("workspace"), "sandbox": table.get("sandbox")}, home)
    yield from _server_of_model(file, "model_settings", table.get("model_settings"))
    for name, said in _table(table.get("subagents")).items():
        yield from _below(f"subagents.{name}.", _of_agent(file, _table(said), home))


def _below(key: str, demands: Iterable[Demand]) -> Iterator[Demand]:
    """Yield the demands of a table with this key."""
    for demand in demands:
        yield msgspec.structs.replace(demand, key=f"{key}{demand.key}")


def _server_of_model(file: Path, key: str, said: Any) -> Iterator[Demand]:
    settings = _table(said)
    url, variable = settings.get("base_url"), settings.get("api_key_env")
    if isinstance(url, str) and url:
        names = (variable,) if isinstance(variable, str) and variable else ()
        if names or _host(url) not in _LOOPBACK:
            yield Demand(file=file, key=f"{key}.base_url", does="send", what=f"to {_without_password(url)}", variables=names)


def _own_policy(file: Path, said: Any) -> Iterator[Demand]:
    if said:
        what = f"the rules in {said}" if isinstance(said, str) else "rules of its own"
        yield Demand(file=file, key="policy", does="decide", what=f"which calls may happen: {what}")


def _checks(file: Path, said: Any) -> Iterator[Demand]:
    for check in _tables(said):
        if isinstance(check.get("function"), str):
            yield Demand(file=file, key="verify.function", does="import", what=check["function"])
        if words := _texts(check.get("command")):
            what = f"{' '.join(words)}, in the sandbox, whenever an answer is checked"
            yield Demand(file=file, key="verify.command", does="start", what=what)


def _servers(file: Path, said: Any) -> Iterator[Demand]:
    for name, table in _table(said).items():
        server = _table(table)
        env, headers = _table(server.get("env")), _table(server.get("headers"))
        words = [str(word) for word in cast("list[Any]", server["args"])] if isinstance(server.get("args"), list) else []
        if isinstance(server.get("command"), str) and server["command"]:
            read = _variables((*words, *env.values()))
            what = f"{' '.join((server['command'], *words))}, in {server.get('cwd') or 'this directory'}"
            what += "".join(f", with {name}={_referred(value)}" for name, value in env.items())
            if "-m" in words[:-1]:
                what += f" (-m {words[words.index('-m') + 1]}: a module, which may lie in that directory)"
            yield Demand(file=file, key=f"mcp.{name}", does="start", what=what, variables=read)
        if isinstance(server.get("url"), str) and server["url"]:
            read = _variables((server["url"], *headers.values()))
            yield Demand(file=file, key=f"mcp.{name}", does="send", what=f"to {_without_password(server['url'])}", variables=read)
        oauth = _table(server.get("oauth"))
        if oauth:
            to = ", ".join(_without_password(oauth[key]) for key in ("issuer", "id_token_endpoint") if isinstance(oauth.get(key), str))
            what = f"who calls, to {to or 'the login that the server names'}"
            yield Demand(file=file, key=f"mcp.{name}.oauth", does="send", what=what, variables=_variables(oauth.values()))
        for tool, pins in _table(server.get("tools")).items():
            if lowered := _lowered(_table(pins)):
                yield Demand(
                    file=file, key=f"mcp.{name}.tools", does="decide", what=f"{tool}: {', '.join(lowered)}, whatever the server says"
                )


def _referred(value: Any) -> str:
    """Return a variable in the form that the file writes it."""
    name = _table(value).get("env")
    return f"${{{name}}}" if isinstance(name, str) else str(value)


def _lowered(pins: Mapping[str, Any]) -> list[str]:
    """Return in words what the pins of a tool relax. Without pins a tool is destructive and not trusted."""
    level = pins.get("side_effect")
    found = [f"its level is {level}"] if level is not None and level != "destructive" else []
    found += ["it may be repeated"] if pins.get("idempotent") is True else []
    return found + (["what it returns is trusted"] if pins.get("trust") == "trusted" else [])


def _opened(file: Path, before: str, said: Mapping[str, Any], home: Path) -> Iterator[Demand]:
    """Yield the demands that let tools do more than the default in a directory."""
    root = said.get("root")
    if isinstance(root, str) and not (home / Path(root).expanduser()).resolve().is_relative_to(home):
        yield Demand(file=file, key=f"{before}{'root' if before else 'workspace'}", does="open", what=f"tools work in {root}")
    if said.get("allow_delete") is True:
        yield Demand(file=file, key=f"{before}allow_delete", does="open", what="tools may remove files")
    if said.get("sandbox") == "off":
        yield Demand(file=file, key=f"{before}sandbox", does="open", what="programs run without a sandbox")
    if said.get("sandbox_network") is True:
        yield Demand(file=file, key=f"{before}sandbox_network", does="open", what="sandboxed programs use this machine's network")
    for key, what in (("sandbox_network", "sandboxed programs reach"), ("sandbox_allow_private", "and they may be at")):
        for place in _texts(said.get(key)):
            yield Demand(file=file, key=f"{before}{key}", does="open", what=f"{what} {place}")
    for path in _texts(said.get("sandbox_readable")):
        yield Demand(file=file, key=f"{before}sandbox_readable", does="open", what=f"sandboxed programs read {path}")


# Which files those are ----------------------------------------------------------------------------------------------------------------


def _named_by(table: Mapping[str, Any], home: Path) -> Iterator[Path]:
    """Yield the files that a file names and whose content takes effect: tools, rules, policies, servers, agents, and modules below import roots."""
    for key in ("agents", "subagents"):
        for said in _table(table.get(key)).values():
            named = _table(said).get("agent", said)
            if isinstance(named, str) and named.endswith(".toml"):
                yield home / Path(named).expanduser()
            yield from _named_by(_table(said), home)
    store: Any = table.get("store")
    memory: Any = table.get("memory")
    stores = [
        *_texts(store if isinstance(store, str) else _table(store).get("url")),
        *_texts([*_table(_table(memory).get("stores")).values()]),
    ]
    stores += _texts(memory if isinstance(memory, str) else _table(memory).get("url"))
    for key in (*NAMING, "planner", "observers", "policy", "store"):
        for said in stores if key == "store" else _named(table, key):
            path = said.rpartition(":")[0] if ":" in said else said
            if path.endswith(".py") or (key == "policy" and path.endswith(".toml")):
                yield home / Path(path).expanduser()
    if isinstance(table.get("rules"), str):
        yield home / table["rules"]
    for server in _table(table.get("mcp")).values():
        said = _table(server)
        place = home / Path(str(said.get("cwd") or ".")).expanduser()
        yield from _files_among((said.get("command"), *_texts(said.get("args"))), place)
    for check in _tables(table.get("verify")):
        if isinstance(path := check.get("function"), str) and (path := path.rpartition(":")[0]).endswith(".py"):
            yield home / Path(path).expanduser()
        yield from _files_among(_texts(check.get("command")), _workspace_of(table, home))
    for root in _texts(table.get("import_roots")):
        below = (path for path in (home / Path(root).expanduser()).rglob("*") if path.suffix in (".py", ".so", ".pyd"))
        found = list(islice(below, MOST_FILES + 1))
        if len(found) > MOST_FILES:
            raise ConfigError(
                f"import_roots: more than {MOST_FILES} modules are in {clean(root)}; name the directory that holds only your own"
            )
        yield from sorted(found)


def _files_among(words: Iterable[Any], place: Path) -> Iterator[Path]:
    """Yield the files that the words of a command line name, relative to its start directory."""
    for word in words:
        if isinstance(word, str) and word and "\0" not in word and len(word) < 1000 and (place / word).is_file():
            yield place / word


def _workspace_of(table: Mapping[str, Any], home: Path) -> Path:
    """Return the directory in which the commands of an agent file's checks are found: its workspace, else its own directory."""
    said = table.get("workspace")
    return home / Path(said).expanduser() if isinstance(said, str) and said else home


def govern(*files: Path) -> None:
    """Mark these files as governing, with every file that they import, start, read or decide by. Nothing is imported."""
    for file in files:
        table, home = _table_in(file), home_of_agent(file)
        without_roots = {key: value for key, value in table.items() if key != "import_roots"}
        governs(place_of(file)[0], *_named_by(without_roots, home))
        governs(
            *(
                home / Path(place).expanduser()
                for key in ("import_roots", "skills")
                for place in _texts(table.get(key))
                if "\0" not in place
            )
        )


def govern_directory(directory: Path) -> None:
    """Mark the configuration and agent files of a directory as governing, with every file that they name."""
    configs, agents = _governing(directory.resolve(), set())
    govern(*configs, *agents)


def imported_file(path: str, home: Path) -> Path | None:
    """Return the file that an import path names, or None if it names a module."""
    module = path.rpartition(":")[0]
    return (home / module).resolve() if module.endswith(".py") else None


def _seen_from(home: Path, file: Path) -> str:
    return os.path.relpath(file, home)


def _content_of(file: Path) -> Content | None:
    try:
        if not file.is_file():  # a device or a pipe may have no end
            return None
        with file.open("rb") as opened:
            digest = file_digest(opened, "sha256").hexdigest()
            opened.seek(0)
            return Content(digest, opened.read(MOST_KEPT).decode("utf-8", "backslashreplace"))
    except (OSError, ValueError):
        return None


# Reading what may be anything ---------------------------------------------------------------------------------------------------------


def _table_in(file: Path) -> dict[str, Any]:
    try:
        real, name = place_of(file)
        table = tomllib.loads(real.read_text(encoding="utf-8")) if real.is_file() else {}
        return _table(_table(table.get("agents")).get(name)) if name else table
    except (OSError, ValueError):  # the code that reads the file to use it will refuse it
        return {}


def _table(said: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", said) if isinstance(said, dict) else {}


def _tables(said: Any) -> list[dict[str, Any]]:
    return [_table(one) for one in cast("list[Any]", said)] if isinstance(said, list) else []


def _named(table: Mapping[str, Any], key: str) -> list[str]:
    """Return the names and import paths under a key; those of `compaction` may be in a table."""
    said = table.get(key)
    return _texts(_table(said).get("use") if key == "compaction" and isinstance(said, dict) else said)


def _texts(said: Any) -> list[str]:
    if isinstance(said, str):
        return [said] if said else []
    return [one for one in cast("list[Any]", said) if isinstance(one, str)] if isinstance(said, list) else []


def _variables(values: Iterable[Any]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for value in values:
        if isinstance(value, str):
            found.update(dict.fromkeys(REFERENCE.findall(value)))
        elif isinstance(name := _table(value).get("env"), str):
            found[name] = None
    return tuple(name for name in found if name not in ALWAYS_READ)


def _without_password(url: str) -> str:
    """Return a URL without its user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
