"""Fuzzing with atheris: `make fuzz` (docs/http2.md).

Each target is a module with `check`, a pure function of bytes that raises where a promise is broken, and `SEEDS`,
inputs that reach what matters. `python -m fuzz` runs them, with the folders on its path that pytest has, too.
"""
