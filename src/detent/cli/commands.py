"""The commands by name, in the groups of `detent help`: where each is defined, and what it does in a few words.

Rule: plain data and text. `detent --help` prints these lines without importing a command; running a command imports only its own module.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """One command: `module:function` in `detent.cli`, and one line of help that fits next to its name in 80 columns."""

    where: str
    summary: str


GROUPS: dict[str, dict[str, Command]] = {
    "Start": {
        "demo": Command("starting:demo", "Kill an example mid-run, resume it, and see nothing run twice"),
        "init": Command("starting:init", "Write an agent with its rules, ready to run"),
        "doctor": Command("doctor:doctor", "Check models, files and store, and say what to do next"),
        "where": Command("where:where", "Show which store and configuration files are used, and why"),
        "completion": Command("completion:completion", "Print the script for completion in bash, zsh or fish"),
        "help": Command("helping:help_on", "Explain a group of commands, or the settings"),
    },
    "Runs": {
        "run": Command("running:run", "Work on a goal"),
        "chat": Command("chat:chat", "Talk to an agent; every message is a run"),
        "sessions": Command("conversations:sessions", "List sessions, newest first"),
        "resume": Command("running:resume", "Continue a run after a crash, a stop or an answer"),
        "cancel": Command("running:cancel", "End a run"),
        "reopen": Command("running:reopen", "Open a failed or stopped run again"),
        "pause": Command("pausing:pause", "Stop an agent, tenant, tool or provider everywhere"),
        "submit": Command("working:submit", "Leave a goal to a worker"),
        "worker": Command("working:worker", "Advance submitted and resumable runs"),
        "serve": Command("serving:serve", "Serve agents over HTTP"),
    },
    "Answers": {
        "approvals": Command("looking:approvals", "List the calls that wait for approval"),
        "approve": Command("running:approve", "Approve a call and continue the run"),
        "deny": Command("running:deny", "Refuse a call and continue the run"),
        "reply": Command("running:reply", "Answer a question of a run"),
        "reconcile": Command("running:reconcile", "Say whether a call in doubt happened"),
    },
    "Look": {
        "list": Command("looking:list_runs", "List runs, newest first"),
        "show": Command("looking:show", "Show what a run did, and why it ended"),
        "ui": Command("serving:ui", "Look at runs in a browser: why, what waits, what if"),
        "why": Command("why:why", "Explain why a run does not move"),
        "top": Command("top:top", "Watch workers, runs and the queue"),
        "tree": Command("family:tree", "Show a run and the runs that its agents started"),
        "cost": Command("family:cost", "Show what a run used, with its children"),
        "tail": Command("looking:tail", "Follow a run that another process advances"),
        "stats": Command("stats:stats", "Show success rates, durations and cost by agent and day"),
        "tools": Command("looking:tools", "List the available tools"),
        "replay": Command("looking:replay", "Execute a log again with the current code"),
        "export": Command("looking:export", "Write the records of a run, or a conversation"),
    },
    "Compare": {
        "diff": Command("forking:diff", "Show what differs between two runs"),
        "bisect": Command("forking:bisect", "Find the first step where two runs differ"),
        "fork": Command("forking:fork", "Copy a run up to a record, change something, continue"),
        "check-upgrade": Command("forking:check_upgrade", "Check which open runs the current code can continue"),
        "versions": Command("rolling:versions", "Show which runs need which version; roll one out"),
        "eval": Command("evaluating:evaluate", "Try agents on cases many times, grade and compare"),
        "backtest": Command("governance:backtest", "Try a policy or a budget on past decisions"),
    },
    "Govern": {
        "trust": Command("trusting:trust", "Show what files of a directory may start, and trust them"),
        "tokens": Command("serving:tokens", "Say who may call `detent serve`"),
        "schedule": Command("scheduling:schedule", "Start runs at set times"),
        "operations": Command("operations:operations", "List and resume what was done to many runs"),
        "explain": Command("governance:explain", "Explain why a call happened, or did not"),
        "verify": Command("verifying:verify", "Check that a log is complete and unaltered"),
        "mcp": Command("mcp:mcp", "Pin what MCP servers declare, or log in at one"),
        "memory": Command("memory:memory", "List, search, correct, review or forget memories"),
    },
    "Storage": {
        "copy": Command("moving:copy", "Copy runs into another store"),
        "archive": Command("moving:archive", "Write finished runs to files and remove them"),
        "import": Command("moving:bring_back", "Bring archived runs back"),
        "erase": Command("removing:erase", "Remove the content of a run, keep its digests"),
        "delete": Command("removing:delete", "Remove a run"),
        "gc": Command("removing:gc", "Remove what was kept long enough, and free space"),
    },
}
BEGINNERS = ("demo", "init", "doctor", "run", "list", "show", "approve", "resume")
"""What `detent --help` shows first."""

EVERY: dict[str, Command] = {name: command for commands in GROUPS.values() for name, command in commands.items()}


def first_screen() -> list[str]:
    """Return what `detent --help` prints: at most 23 lines of 80 columns, so that the prompt fits on the screen too."""
    return [
        "Usage: detent COMMAND [OPTIONS]     `detent COMMAND --help` explains a command.",
        "Detent runs agents durably: each step is recorded, and no recorded step runs",
        "twice. Start here:",
        *(_line(name) for name in BEGINNERS),
        "",
        "All commands, by group. `detent help GROUP` explains a group:",
        *(f"  {group.lower():<10} {' '.join(commands)} " for group, commands in GROUPS.items()),
        "",
        "Everywhere: --debug, --log-level LEVEL, --log-json, --version. Exit codes and",
        "environment variables: `detent help settings`.",
    ]


def group_lines(group: str) -> list[str]:
    """Return what `detent help GROUP` prints; `group` as in `GROUPS`."""
    return [f"{group}:", *map(_line, GROUPS[group]), "", "`detent COMMAND --help` explains a command."]


def _line(name: str) -> str:
    return f"  {name:<14} {EVERY[name].summary}"
