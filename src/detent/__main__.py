"""`python -m detent` is the command line."""

import sys

from detent.cli.main import run

sys.exit(run())
