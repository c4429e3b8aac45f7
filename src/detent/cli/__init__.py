"""The command line: `detent.cli.main:run`."""
