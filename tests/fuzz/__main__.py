"""Run libFuzzer over the targets, one after another: `make fuzz` (ARGS='http2 --seconds 600').

What breaks a promise is left in build/fuzz/TARGET, and the command that shows it again is printed. What libFuzzer
finds interesting is kept there, too, so that the next run goes on from it.
"""

import argparse
import platform
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from fuzz.runner import fuzz
from fuzz.targets import TARGETS, load

FOLDER: Final = Path("build") / "fuzz"
# What atheris puts into the code leaks: up to 5 KiB for each input of `session`, while the same inputs leave nothing
# behind without it. So no process goes on for longer, in seconds; the next one goes on from the corpus.
_PROCESS_SECONDS: Final = 300


def main() -> int:
    """0 where every promise held, 1 where one was broken, 2 where nothing can be run."""
    arguments = _arguments()
    if arguments.input is not None:
        for name in arguments.targets:
            load(name).check(arguments.input.read_bytes())
        return 0
    if find_spec("atheris") is None:
        print(
            "atheris is not installed: its releases are for CPython 3.11 to 3.13 on Linux x86_64, this is "
            f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} "
            f"{platform.machine()}. The tests of hypothesis need none of it: make test-unit.",
            file=sys.stderr,
        )
        return 2
    stops = [f"-runs={arguments.runs}"] if arguments.runs else _parts_of(arguments.seconds)
    broken = [name for name in arguments.targets if not _holds(name, arguments.folder / name, stops)]
    return 1 if broken else 0


def _parts_of(seconds: int) -> list[str]:
    whole, rest = divmod(seconds, _PROCESS_SECONDS)
    return [f"-max_total_time={each}" for each in (*[_PROCESS_SECONDS] * whole, rest) if each]


def _holds(name: str, folder: Path, stops: list[str]) -> bool:
    print(f"{name}: {TARGETS[name]}", flush=True)
    return all(_holds_for(name, folder, stop) for stop in stops)


def _holds_for(name: str, folder: Path, stop: str) -> bool:
    before = set(folder.glob("*-*"))
    outcome, text = fuzz(name, folder, stop)
    print(
        f"  {outcome.executions:,} inputs, cov {outcome.edges:,}, ft {outcome.features:,}, corpus {outcome.corpus:,}, "
        f"at most {outcome.memory_mib} MiB",
        flush=True,
    )
    if outcome.code == 0:
        return True
    print(text[-4_000:])
    for path in sorted(set(folder.glob("*-*")) - before):
        print(f"broken by {path}; once more: make fuzz ARGS='{name} --input {path}'", flush=True)
    return False


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz with atheris.")
    # Not `choices`: of none at all argparse would check the list itself.
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)}; all without one")
    parser.add_argument("--seconds", type=_positive, default=30, help="for each target (%(default)s)")
    parser.add_argument("--runs", type=_positive, help="inputs for each target, instead of a time")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for what is found (%(default)s)")
    parser.add_argument("--input", type=Path, help="try this file once, without atheris")
    arguments = parser.parse_args()
    unknown = [each for each in arguments.targets if each not in TARGETS]
    if unknown:
        parser.error(f"no target {unknown[0]!r}; there are {', '.join(TARGETS)}")
    if arguments.input is not None and len(arguments.targets) != 1:
        parser.error("--input is for one target")
    arguments.targets = arguments.targets or list(TARGETS)
    return arguments


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"a whole number above 0, not {text!r}")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
