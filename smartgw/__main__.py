"""The `smartgw` command: hands its arguments to `smartgw.cli`, compiled where it is compiled."""

import sys

from smartgw import native

native.install()

from smartgw import cli  # noqa: E402 - what it imports is found compiled from here on


def main() -> int:
    """Run the command line of this process; returns its exit code."""
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
