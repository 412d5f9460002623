"""Runs libFuzzer over one target, in a process of its own: `python -m fuzz.engine TARGET [libFuzzer arguments]`.

Whatever libFuzzer ends with ends this process, so nothing follows after it.
"""

import logging
import sys

import atheris

from fuzz.targets import load

# Ours, and what reads header blocks for us.
_INSTRUMENTED = ["extproc", "recursant", "hpack"]


def main(arguments: list[str]) -> None:
    """Fuzz; does not return."""
    name, *options = arguments
    with atheris.instrument_imports(include=_INSTRUMENTED):
        target = load(name)
    # What a session raises on purpose is logged with its traceback.
    logging.disable(logging.CRITICAL)
    atheris.Setup([name, *options], target.check)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
