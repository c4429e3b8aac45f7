"""The long version of the PostgreSQL soak, run by hand.

    python tests/faults/soak_postgres.py [--runs 500] [--processes 8] [--seed 1] [--keep]

Starts a PostgreSQL of its own, lets the processes take the runs to their ends while workers are killed (SIGKILL) and the server is restarted
with `-m immediate` at random, and then checks that every run completed, that no effect happened twice, that every record that was acknowledged
is there, and that every digest chain verifies and every replay is identical. Exits 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]


def main() -> int:
    """Run the soak that the arguments describe."""
    from stores.postgres.cluster import MISSING, Cluster, programs
    from stores.postgres.soak import soak

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the files of effects and of acknowledged records")
    asked = parser.parse_args()
    found = programs()
    if found is None:
        sys.stderr.write(f"{MISSING}\n")
        return 2
    cluster, directory = Cluster(found), Path(tempfile.mkdtemp(prefix="detent-soak-"))
    try:
        cluster.create()
        outcome = soak(
            cluster,
            directory,
            runs=asked.runs,
            processes=asked.processes,
            seed=asked.seed,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
        print(outcome)
    except AssertionError as error:
        sys.stderr.write(f"WRONG: {error}\n(files in {directory})\n")
        return 1
    finally:
        cluster.remove()
    if not asked.keep:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
