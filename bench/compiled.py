"""The hot path compiled (hatch_build.py), for a process that is measured beside the plain one."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
# As `make compiled` has it; the folder follows.
INSTALL: Final = "-m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --target"


def compiler() -> str | None:
    """The C compiler that would be used; None where there is none."""
    return shutil.which("cc") or shutil.which("gcc")


async def build(folder: Path) -> None:
    """Compile into `folder`, which is not there yet: a process whose working directory it is runs from there.

    Raises:
        RuntimeError: it does not compile; with what the compiler said.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *INSTALL.split(), str(folder), str(ROOT)),
        env={**os.environ, "RECURSANT_COMPILE": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(said.decode(errors="replace"))
