"""`detent` and `python -m detent`: the command line."""

import sys


def main() -> int:
    """Run the command of the process's arguments and return its exit code."""
    try:
        from detent.cli.main import run
    except KeyboardInterrupt:  # while it is loaded, which takes a moment
        sys.stderr.write("interrupted; nothing was begun\n")
        return 5
    return run()


if __name__ == "__main__":
    sys.exit(main())
