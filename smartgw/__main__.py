"""The `smartgw` command: hands its arguments to `smartgw.cli`."""

import sys

from smartgw import cli


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
