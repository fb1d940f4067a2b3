"""kill -9 of a gateway while it writes its snapshot, again and again (contract 11.2).

`python -m tests.drills.kills [--times 50]`. Prints the figure last; fails with the first start
that was not a good one.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.gateway import Cluster
from tests.smartgw.state.test_start import kill_while_it_writes


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser("kills", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--times", type=int, default=50)
    times = parser.parse_args(argv).times
    cluster = Cluster()
    try:
        with tempfile.TemporaryDirectory() as folder:
            kill_while_it_writes(cluster, Path(folder) / "state", times)
    finally:
        cluster.stop()
    print(f"{times} of {times} good starts after kill -9, the last without a bus")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
