"""Becomes another program that the kernel kills when our parent dies: `launch.py PARENT_PID COMMAND...`.

Run as a script by the supervisor, isolated and without site-packages, because it starts before every child. It is
a program of its own because the wish must be made in the child, between fork and exec, and running Python there
is not safe in a parent that has threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_CANNOT_RUN = 127  # What shells answer for a command that cannot be found.


def main(arguments: list[str]) -> None:
    """Ask for SIGKILL at the parent's death, then run the command; returns only by an exception."""
    parent, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:
        # It died before we asked, so nobody will tell us.
        sys.exit("the supervisor has ended")
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(_CANNOT_RUN)


if __name__ == "__main__":
    main(sys.argv[1:])
