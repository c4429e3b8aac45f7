"""The command line: each command is a thin reader of options over the engine.

Rule: errors are one message and an exit code, never a traceback of ours; `--help` is the reference that docs/reference/cli.md is made from.
Start with `main`, which lists the commands. `option_sets` declares each set of options once, `session` opens store and engine, `running`, `looking`,
`forking`, `moving`, `working` are the commands, the rest is what they print.
"""
