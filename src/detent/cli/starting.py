"""Commands to begin with: init, demo."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from detent.cli import options as o
from detent.cli.output import Output
from detent.cli.packaged import packaged, texts, written
from detent.cli.questions import Later, choose, typed
from detent.cli.trusting import attended
from detent.config.demands import listing
from detent.config.trust import remember
from detent.core.errors import ConfigError

STANDS_IN = re.compile(r"^# model = .*\n^rules = .*\n", re.MULTILINE)
"""The lines of an agent file that a model replaces."""


class Template(msgspec.Struct, frozen=True):
    """What a project is for, and what to type in it first."""

    about: str
    first: str


TEMPLATES = {
    "rules": Template("an agent that follows rules and needs no model", 'detent run "Count the text files here"'),
    "model": Template("a model with tools", 'detent run "How many people live in Paris and Lyon?"'),
    "coding": Template("an agent that works on code and asks before it runs a program", 'detent run "Make check_greeting.py pass"'),
    "service": Template(
        "a web service with approvals, from your own program",
        "pip install -r requirements.txt && TOKEN=$(openssl rand -hex 32) uvicorn app:app --timeout-graceful-shutdown 3",
    ),
    "tests": Template("a test suite for an agent", "python -m pytest"),
}
"""The templates by the name of their directory in examples/templates."""


def init(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="The project directory; created if it does not exist.")] = Path(),
    *,
    template: Annotated[
        Literal["rules", "model", "coding", "service", "tests"] | None,
        typer.Option("--template", "-t", help="What the project is for. Default: ask at a terminal, else rules."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="PROVIDER:NAME", help="The model that plans; only for the templates model and coding."),
    ] = None,
    json_wanted: o.Json = False,
) -> int:
    """Write a project that runs as it is and has a test, and trust it. No file is overwritten."""
    output = Output(json_wanted=json_wanted)
    _refuse_existing(directory, template)
    name: str = template or (_asked(output) if attended(output) else "rules")
    files = dict(_files(name))
    _refuse_existing(directory, name)
    agent = files.get("agent.toml", "")
    replaceable = STANDS_IN.search(agent) is not None
    if model is not None and not replaceable:
        raise ConfigError(f"--model: the template {name} uses no model; choose --template model or coding")
    if model is None and template is None and replaceable and attended(output):
        model = _asked_model(output)
    if model:
        if not re.fullmatch(r"[\w.:/@+-]+", model):
            raise ConfigError(f"--model {model!r} is not the name of a model; give PROVIDER:NAME, such as openai:gpt-5")
        files["agent.toml"] = STANDS_IN.sub(f'model = "{model}"\n', agent)
        del files["rules.yaml"]
    for path, text in files.items():
        written(directory / path, text)
    output.document({"template": name, "written": [str(directory / path) for path in files]})
    output.say(f"wrote {', '.join(files)} in {directory}")
    found = listing(directory)
    if found.files and {*found.files} <= {*files}:  # no file that existed before asks for anything
        with contextlib.suppress(ConfigError):  # trust cannot be remembered: then the first command asks
            remember(found)
    place = "" if directory.resolve() == Path.cwd() else f"cd {shlex.quote(str(directory))} && "
    output.say(f"next: {place}{TEMPLATES[name].first}")
    if TEMPLATES[name].first != "python -m pytest":
        output.say("its test: python -m pytest")
    return 0


def _files(name: str) -> Iterator[tuple[str, str]]:
    return texts(packaged("templates") / name)


def _refuse_existing(directory: Path, name: str | None) -> None:
    """Raise `ConfigError` if a file of the template exists already; without a name, if that is so for every template."""
    there = {
        one: next((path for path, _ in _files(one) if os.path.lexists(directory / path)), None) for one in ([name] if name else TEMPLATES)
    }
    if all(there.values()):
        path = next(iter(there.values()))
        raise ConfigError(
            f"{directory / str(path)} exists; nothing was written. Remove it first, or give another directory: detent init DIR"
        )


def _asked(output: Output) -> str:
    output.say("What is the project for?", "bold")
    try:
        return choose(output, list(TEMPLATES), about=[one.about for one in TEMPLATES.values()], enter="rules")
    except Later:
        return "rules"


def _asked_model(output: Output) -> str | None:
    try:
        return typed(output, "Which model? PROVIDER:NAME", enter="none yet, use rules")
    except Later:
        return None


def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where to run. Default: a new temporary directory.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", metavar="PROVIDER:NAME", help="Let this model decide. auto: use the first provider whose key is set."
        ),
    ] = None,
    json_wanted: o.Json = False,
) -> int:
    """Kill an agent during a payment, resume it, approve a payment, and prove that nothing was paid twice. A plain loop pays twice."""
    from detent.cli.demo import demonstrate

    return demonstrate(Output(json_wanted=json_wanted), directory, model)
