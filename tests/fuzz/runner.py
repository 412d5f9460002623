"""One run of libFuzzer over one target, in a process of its own: libFuzzer ends the process that it runs in."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuzz.targets import load

# Each input is worked on in milliseconds; whatever takes this long hangs.
_INPUT_SECONDS: Final = 10
# An instrumented process has 50 to 400 MiB; whatever grows to this leaks.
_MEMORY_MIB: Final = 1_024
# So many inputs are the same ones every time; what is tried for a time is not.
_SEED: Final = 1
_LONGEST_INPUT: Final = 4_096
_EXECUTIONS: Final = re.compile(r"^stat::number_of_executed_units:\s*(\d+)", re.MULTILINE)
_MEMORY: Final = re.compile(r"^stat::peak_rss_mb:\s*(\d+)", re.MULTILINE)
_COVERAGE: Final = re.compile(r"cov: (\d+) ft: (\d+) corp: (\d+)")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the fuzzing of one target went.

    Attributes:
        code: libFuzzer's exit status; 0 where no promise was broken.
        executions: inputs that were tried.
        edges: of the instrumented code that they reached, as libFuzzer counts.
        features: the same with how often.
        corpus: inputs kept.
        memory_mib: the most that the process had.
    """

    code: int
    executions: int
    edges: int
    features: int
    corpus: int
    memory_mib: int


def fuzz(name: str, folder: Path, stop: str) -> tuple[Outcome, str]:
    """Run libFuzzer over a target in a process of its own.

    Args:
        name: the target.
        folder: for its corpus, which grows, for what breaks a promise, and for the log.
        stop: libFuzzer's argument that ends it.

    Returns:
        How it went, and what it printed.
    """
    corpus, seeds = folder / "corpus", folder / "seeds"
    for each in (corpus, seeds):
        each.mkdir(parents=True, exist_ok=True)
    target = load(name)
    for number, seed in enumerate(target.seeds):
        (seeds / f"{number:02}").write_bytes(seed)
    words = folder / "words"
    words.write_text("".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in target.words))
    options = (
        stop,
        *((f"-seed={_SEED}",) if stop.startswith("-runs=") else ()),
        f"-timeout={_INPUT_SECONDS}",
        f"-rss_limit_mb={_MEMORY_MIB}",
        f"-max_len={_LONGEST_INPUT}",
        f"-artifact_prefix={folder}/",
        # An empty one is refused.
        *((f"-dict={words}",) if target.words else ()),
        "-print_final_stats=1",
        "-verbosity=1",
    )
    command = [sys.executable, "-m", "fuzz.engine", name, *options, str(corpus), str(seeds)]
    # It finds what we find.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False)
    text = done.stdout.decode(errors="replace")
    (folder / "log").write_text(text)
    coverage = _COVERAGE.findall(text)
    edges, features, kept = map(int, coverage[-1]) if coverage else (0, 0, 0)
    outcome = Outcome(done.returncode, _number(_EXECUTIONS, text), edges, features, kept, _number(_MEMORY, text))
    return outcome, text


def _number(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(found[1]) if found else 0
