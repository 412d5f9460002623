"""The `recursant` command. Each command imports what it needs when it runs, so that `--help` is quick."""

import sys


def main() -> None:
    """Run the command line in `sys.argv`; ends the process.

    Exit codes: 0 done, 1 it failed, 2 the command line or a configuration file is wrong.
    """
    from recursant.cli.app import run

    sys.exit(run(sys.argv[1:]))
