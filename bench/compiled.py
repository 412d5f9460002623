"""The hot path compiled (scripts/compile-hot-path), for a process that is measured beside the plain one."""

import asyncio
import shutil
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "compile-hot-path"


def compiler() -> str | None:
    """The C compiler that would be used; None where there is none."""
    return shutil.which("cc") or shutil.which("gcc")


async def build(folder: Path) -> None:
    """Compile into `folder`: a process whose working directory it is runs from there.

    Raises:
        RuntimeError: it does not compile; with what the compiler said.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(SCRIPT), str(folder), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(said.decode(errors="replace"))
