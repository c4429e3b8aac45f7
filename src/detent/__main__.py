"""`detent` and `python -m detent`: the command line.

Loading it takes a moment, in which Ctrl-C is heard here: nothing has begun, so that there is nothing to suspend. Nothing is imported here, before
the working directory is off the path, that could be found there.
"""

import os  # loaded before any program
import sys

_signal = __import__("_signal")  # what `signal` is made of, and built in


def main() -> int:
    """Run the command of the process's arguments and return its exit code."""
    heard = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler  # not where whoever started this process has it ignored
    if heard:
        _signal.signal(_signal.SIGINT, _too_early)
    from detent.cli.import_path import leave_out_the_working_directory

    leave_out_the_working_directory()
    from detent.cli.main import run

    def loaded() -> None:
        if heard:
            _signal.signal(_signal.SIGINT, _signal.default_int_handler)

    return run(loaded=loaded)


def _too_early(*_: object) -> None:
    """End the process at once: an exception would come up wherever a module is being loaded, and be shown from there."""
    os.write(2, b"interrupted; nothing was begun\n")
    os._exit(5)


if __name__ == "__main__":
    sys.exit(main())
