"""`detent where`: shows where the runs of this directory are kept, out of reach of its tools, and adopts a store from elsewhere."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from detent.cli import options as o
from detent.cli.invocation import DECIDING, Invocation
from detent.cli.output import Output, clean
from detent.cli.trusting import ask, attended
from detent.config import adopting
from detent.config.demands import Demand
from detent.config.loading import AGENT_FILE, CONFIG_FILE, find_config, operators_config
from detent.config.state_directory import OPERATORS_FILE, state_directory, store_url
from detent.config.trust import Trust
from detent.core.errors import ConfigError
from detent.ports.passwords import without_password
from detent.ports.store_files import places_of


def where(
    old: Annotated[
        Path | None,
        typer.Argument(metavar="[OLD]", help="With --adopt: the state directory of the directory before it was moved.", show_default=False),
    ] = None,
    *,
    adopt: Annotated[bool, typer.Option("--adopt", help="Move the store in ./.detent, or in OLD, to the state directory.")] = False,
    setup: o.Looking,
) -> int:
    """Print which store, memory, state directory and configuration files are used here, and why each was chosen.

    No tool of an agent can write to the state directory. A store in ./.detent is not used, because somebody else may have put it there; --adopt
    moves it to the state directory if this directory is trusted (`detent trust`). A directory that was moved starts without runs; `--adopt OLD`
    brings its old runs back.
    """
    here = Path.cwd()
    if adopt:
        return _adopt(Output(json_wanted=setup.json_wanted), here, old, vouched=setup.trust)
    if old is not None:
        raise ConfigError(f"where {old}: add --adopt to move the store from there to the state directory of {here}")
    place = state_directory()
    try:
        invocation = Invocation(setup, bare=True)
    except ConfigError:  # show where the operator's file is, even if a file cannot be read
        output = Output(json_wanted=setup.json_wanted)
        output.document({"directory": str(here), "state_directory": str(place), "operators_file": str(place / OPERATORS_FILE)})
        output.show(f"state     {clean(str(place))}")
        output.show(f"operator  {clean(str(place / OPERATORS_FILE))}")
        raise
    store, operators = invocation.engine.store.url, place / OPERATORS_FILE
    exists = all(Path(path).exists() for path in places_of(invocation.engine.store))
    unused, output = adopting.unused(here), invocation.output
    lines = [
        ("state", str(place), f"derived from the path of this directory, in {_home()}"),
        ("store", store, _and_there(_why_store(setup, invocation, operators), exists)),
        ("memory", *_memory(setup, invocation, operators)),
        ("operator", str(operators), _and_there("overrides the configuration, because no tool can write it", operators.is_file())),
        ("config", *_configured(setup)),
        ("agent", *_agent(invocation, operators)),
    ]
    output.document(
        {
            "directory": str(here),
            "state_directory": str(place),
            "store": store,
            "store_exists": exists,
            "operators_file": str(operators),
            "operators_file_exists": operators.exists(),
            "not_used": None if unused is None else str(unused),
            "moved": [{"state_directory": str(state), "directory": whose.path} for state, whose in adopting.moved(here)],
            "used": {name: {"what": what, "why": why} for name, what, why in lines},
        }
    )
    for name, what, why in lines:
        output.show(f"{name:<9} {clean(what)}")
        output.show(f"{'':<9} {clean(why)}", "dim")
    return 0


def _and_there(why: str, exists: bool) -> str:
    return why if exists else f"{why}; does not exist yet"


def _home() -> str:
    return "$XDG_STATE_HOME" if Path(os.environ.get("XDG_STATE_HOME", "")).is_absolute() else "~/.local/state"


def _why_store(setup: o.Setup, invocation: Invocation, operators: Path) -> str:
    """Return the setting that names the store: the first of option, environment, operator's file and configuration."""
    if setup.store:
        return "named by --store"
    if os.environ.get("DETENT_STORE"):
        return "named by DETENT_STORE"
    if operators_config(without=DECIDING).store.url:
        return f"named by {operators}"
    if invocation.filed.store.url:
        return f"named by {_configured(setup)[0]}"
    return "the default, in the state directory: no option, variable or file names another"


def _memory(setup: o.Setup, invocation: Invocation, operators: Path) -> tuple[str, str]:
    """Return where agents keep what they remember, each memory but an only one with its name, and the files that say so."""
    said = invocation.config.memory
    places = {name: without_password(url) for name, url in (("", said.url), *(said.stores or {}).items()) if url is not None}
    if not places:
        return "none", f"no file has a table [memory]; write one with url into {CONFIG_FILE}"
    theirs = operators_config(without=DECIDING).memory
    files = [
        *([str(operators)] if theirs.url is not None or theirs.stores else []),
        *([_configured(setup)[0]] if (said.url, said.stores) != (theirs.url, theirs.stores) else []),
    ]
    return ", ".join(f"{name}: {url}" if name else url for name, url in places.items()), f"named by {' and '.join(files)}"


def _configured(setup: o.Setup) -> tuple[str, str]:
    """Return the configuration file in use, and why."""
    if setup.config is not None:
        return str(setup.config), "named by --config"
    if named := os.environ.get("DETENT_CONFIG"):
        return named, "named by DETENT_CONFIG"
    found = find_config()
    return (str(found.resolve()), "found in this directory") if found else ("none", f"this directory has no {CONFIG_FILE}")


def _agent(invocation: Invocation, operators: Path) -> tuple[str, str]:
    """Return the agent file for a command that names none, and why."""
    if os.environ.get("DETENT_AGENT"):
        return os.environ["DETENT_AGENT"], "named by DETENT_AGENT"
    if invocation.config.agent:
        return invocation.config.agent, f"named by `agent` in the configuration or in {operators.name} of the state directory"
    if Path(AGENT_FILE).is_file():
        return str(Path(AGENT_FILE).resolve()), "found in this directory"
    return "none", f"this directory has no {AGENT_FILE}; name one with --agent"


def _adopt(output: Output, here: Path, old: Path | None, *, vouched: bool) -> int:
    source = adopting.adoptable(here, old)
    place = state_directory(here)
    taken = Demand(
        file=source, key="where --adopt", does="open", what=f"these runs, with all their approvals, are taken for yours, in {place}"
    )
    Trust(vouched=vouched, ask=partial(ask, output) if attended(output) else None).need(here, (taken,))
    names = adopting.adopt(source, here)
    data: dict[str, Any] = {"from": str(source), "state_directory": str(place), "adopted": names, "store": store_url(here)}
    output.document(data)
    output.say(f"moved {', '.join(clean(name) for name in names) or 'nothing'} from {clean(str(source))} to {clean(str(place))}")
    if not (place / adopting.STORE_FILE).exists():
        output.say(f"it contains no {adopting.STORE_FILE}; name your store, such as --store file:{place / 'runs'}", "yellow")
    else:
        output.say("`detent list` shows its runs, `detent verify RUN` checks one")
    return 0
