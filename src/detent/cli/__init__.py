"""The command line: each command reads its options and calls the engine.

Rule: errors are one message and an exit code, never a traceback of ours; docs/reference/cli.md is generated from the `--help` texts.
Start with `main`, which runs the named command. `option_sets` declares each set of options once, `invocation` opens store and engine, `running`,
`looking`, `forking`, `moving`, `working` have the commands, and the rest prints their output.
"""
