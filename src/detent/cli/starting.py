"""Commands to begin with: init, demo."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from detent.cli import options as o
from detent.cli.output import Output
from detent.config.demands import listing
from detent.config.schema_lines import schema_line
from detent.config.trust import remember
from detent.core.errors import ConfigError

DETENT_TOML = """\
# What `detent` reads in this directory. Precedence: built-in < this file < agent file < DETENT_* variables < options.
# Every key may be left out; the values here are the built-in ones unless a comment says otherwise.

agent = "agent.toml"          # which agent `detent run` uses: a file, or a name in [agents]

# [store]                     # runs are kept outside of this directory, where no tool of an agent can write: `detent where` prints the place
# url = "sqlite:////var/lib/agents/runs.db"  # another one: sqlite:////PATH, file:/DIR, postgresql://HOST/DATABASE, or ram: (nothing is kept)

[workspace]
root = "."                    # the directory that workspace tools are confined to; an agent file may name another
allow_delete = false          # true lets apply_patch remove and move files, and makes it ask for approval

[limits]
ceiling = 1000                # the most iterations that any budget may ask for
# max_concurrent_runs = 4
# max_concurrent_calls = 8     # calls of tools at once, over all runs
# drain_s = 25                 # how long writes may take to finish after Ctrl-C or SIGTERM

[budget]                      # bounds of every run; an agent's own come over them
max_iterations = 50
max_tool_calls = 1000

[worker]                      # `detent worker`, which advances runs that were submitted, and those that wait, when they can go on
concurrency = 4               # how many runs at once
max_attempts = 5              # how often a run is tried that fails, or whose worker dies, before it is given up

[output]
verbosity = 0                 # 1: input and output of calls, 2: every record
progress = true

# [agents]                    # names for `detent run --agent NAME`
# tidy = "agents/tidy.toml"
"""

AGENT_TOML = """\
# Who works on a goal. This agent needs no model: its rules decide what happens next.
#
#     detent run "Count the text files here"

name = "starter"
instructions = "Count the text files of the workspace and write the figure down."
tools = ["glob", "write_file"]   # only these are offered; `detent tools` lists what there is, "./tools.py:attribute" imports your own
rules = "rules.yaml"
workspace = "."                  # relative to this file

on_deny = "observe"              # a denied call is told to the planner; "fail" ends the run
on_reject = "observe"            # a rejected approval likewise; "stop" ends the run

[budget]
max_iterations = 10

[variables]                      # `detent run --var pattern=**/*.csv ...` gives another value
pattern = "**/*.txt"
report = "count.md"
"""

RULES_YAML = """\
# An ordered list of rules: the first that has something to do gives the next action. Each fires once unless it says otherwise.

- name: find
  call:
    tool: glob
    args: {pattern: "${variables.pattern}"}
  as: found
  on_error: stop

- name: write
  call:
    tool: write_file
    args:
      path: "${variables.report}"
      force: true
      content: |
        # ${goal}

        ${size(results.found.value.paths)} files match ${variables.pattern}.
  on_error: stop

- name: answer
  answer: "${size(results.found.value.paths)} files match ${variables.pattern}; written to ${variables.report}"
"""

STARTER = {"detent.toml": DETENT_TOML, "agent.toml": AGENT_TOML, "rules.yaml": RULES_YAML}


def init(
    directory: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where; created where it is missing.")] = Path(),
    json_wanted: o.Json = False,
) -> int:
    """Write a detent.toml, an agent and its rules that run as they are, and trust them; nothing that exists is overwritten."""
    output = Output(json_wanted=json_wanted)
    there = [name for name in STARTER if (directory / name).exists()]
    if there:
        raise ConfigError(
            f"{directory / there[0]} exists; nothing was written. Remove it first, or give another directory: detent init DIR"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in STARTER.items():
        with (directory / name).open("x", encoding="utf-8") as file:
            file.write(schema_line(directory / name) + text)
    output.document({"written": [str(directory / name) for name in STARTER]})
    output.say(f"wrote {', '.join(str(directory / name) for name in STARTER)}")
    found = listing(directory)
    if not found.demands:  # other files that were there, and ask for something, were not written here
        with contextlib.suppress(ConfigError):  # no place to remember it; as it was written, nothing of it needs trust
            remember(found)
    place = "" if directory.resolve() == Path.cwd() else f"cd {directory} && "
    output.say(f'next: {place}detent run "Count the text files here"')
    return 0


def demo(
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where to run; default: a new temporary directory.")
    ] = None,
    json_wanted: o.Json = False,
) -> int:
    """Run an example, kill it in the middle with SIGKILL, resume it, and prove that no effect was repeated."""
    from detent.cli.demo import demonstrate

    return demonstrate(Output(json_wanted=json_wanted), directory)
