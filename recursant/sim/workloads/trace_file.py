"""Lines of a trace file, compressed or not, and errors that say where in it something is wrong."""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_GZIP_MAGIC: Final = b"\x1f\x8b"
# A line beyond this is no line of a trace. Mooncake's longest, of 191,378 tokens, has about 2,600 characters.
MAX_LINE: Final = 1_000_000


class TraceError(ValueError):
    """A trace file cannot be used. The text names file, line, value and what is allowed."""

    def __init__(self, path: Path, line: int | None, message: str) -> None:
        super().__init__(f"{path}:{line}: {message}" if line is not None else f"{path}: {message}")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers from 1. Compressed files are known by their content.

    Raises:
        TraceError: the file cannot be read, or a line is longer than `MAX_LINE` characters.
    """
    number = 0
    try:
        with path.open("rb") as probe:
            compressed = probe.read(2) == _GZIP_MAGIC
        with gzip.open(path, "rt", encoding="utf-8") if compressed else path.open(encoding="utf-8") as file:
            while line := file.readline(MAX_LINE + 1):
                number += 1
                if len(line) > MAX_LINE:
                    raise TraceError(path, number, f"longer than {MAX_LINE:,} characters")
                if line.strip():
                    yield number, line.strip()
    except OSError as error:
        raise TraceError(path, None, error.strerror or str(error)) from error
    except (EOFError, zlib.error) as error:
        raise TraceError(path, number + 1, f"broken gzip data: {error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(path, number + 1, f"not UTF-8: {error.reason}") from error


def whole_number(path: Path, line: int, field: str, value: object, least: int) -> int:
    """A field as a whole number of at least `least`.

    Raises:
        TraceError: it is none.
    """
    number: int | None = None
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal():
        number = int(value)
    if number is None or number < least:
        raise TraceError(path, line, f"{field} must be a whole number of at least {least}, not {value!r}")
    return number
