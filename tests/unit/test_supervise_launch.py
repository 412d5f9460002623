"""The launcher: the kernel ends its program when the parent dies, however it dies."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from recursant.supervise import launch

LAUNCHER = [sys.executable, "-I", "-S", launch.__file__]
# A parent that starts a child through the launcher, tells its pid, and waits to be killed.
PARENT = """
import os, subprocess, sys, time
child = subprocess.Popen([*sys.argv[1:], str(os.getpid()), "sleep", "60"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def eventually(condition: object, *arguments: int) -> None:
    deadline = time.monotonic() + 20
    while not condition(*arguments):  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_program_dies_with_a_parent_that_is_killed_hard() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, *LAUNCHER], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            eventually(is_sleep, pid)
            parent.kill()
            parent.wait()
            eventually(gone, pid)
        finally:
            if is_sleep(pid):
                os.kill(pid, signal.SIGKILL)


def test_does_not_start_when_the_parent_has_gone() -> None:
    not_our_pid = 1
    done = subprocess.run([*LAUNCHER, str(not_our_pid), "echo", "started"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "the supervisor has ended\n"


def test_becomes_the_program() -> None:
    command = [*LAUNCHER, str(os.getpid()), "sh", "-c", "echo $$ $0 $1; exit 7", "zero", "one two"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate()
    assert output == f"{process.pid} zero one two\n"
    assert process.returncode == 7


def test_names_a_program_that_cannot_run() -> None:
    done = subprocess.run([*LAUNCHER, str(os.getpid()), "/nowhere/it"], capture_output=True, text=True, check=False)
    assert done.returncode == 127
    assert done.stderr == "cannot run /nowhere/it: No such file or directory\n"
