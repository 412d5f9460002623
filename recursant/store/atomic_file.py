"""Files that a reader finds whole, after a crash as well."""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write so that a reader finds the old or the new text and never a part; for the owner's eyes only.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
