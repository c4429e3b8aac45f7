"""`detent` and `python -m detent`: the command line.

Loading it takes a moment, in which Ctrl-C is heard here: nothing has begun, so that there is nothing to suspend.
"""

import os
import signal
import sys


def main() -> int:
    """Run the command of the process's arguments and return its exit code."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where whoever started this process has it ignored
    if heard:
        signal.signal(signal.SIGINT, _too_early)
    from detent.cli.main import run

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


def _too_early(*_: object) -> None:
    """End the process at once: an exception would come up wherever a module is being loaded, and be shown from there."""
    os.write(2, b"interrupted; nothing was begun\n")
    os._exit(5)


if __name__ == "__main__":
    sys.exit(main())
