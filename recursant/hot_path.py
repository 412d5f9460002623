"""Whether what runs for every request is compiled (docs/performance.md, "Compiled")."""

from importlib.machinery import EXTENSION_SUFFIXES

from recursant import __version__, names


def is_compiled(file: str) -> bool:
    """Whether a module that was imported from this file is compiled."""
    return file.endswith(tuple(EXTENSION_SUFFIXES))


def hot_path() -> str:
    """`compiled` or `not compiled`. A build compiles all of it or nothing, so one of its modules tells for all."""
    return "compiled" if is_compiled(names.__file__) else "not compiled"


def build() -> str:
    """Version and build, as a line: `0.1.0 (hot path compiled)`."""
    return f"{__version__} (hot path {hot_path()})"
