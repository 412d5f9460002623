"""How commands fail: one line for the operator and an exit code for scripts."""

from typing import Final

FAILURE: Final = 1
USAGE: Final = 2  # The command line or a configuration file is wrong; the same as for unknown options.


class CommandError(Exception):
    """An expected failure. The text is for the operator and names what to do; no traceback is shown.

    Attributes:
        exit_code: of the process.
    """

    def __init__(self, message: str, exit_code: int = FAILURE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
