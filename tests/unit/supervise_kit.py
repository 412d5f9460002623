"""Small programs to supervise: they listen, obey, refuse or die as told."""

import sys
from pathlib import Path

from recursant.supervise.probe import TcpProbe, UnixProbe
from recursant.supervise.process import ProcessSpec

# Listens on a Unix socket; argv: path of the socket, seconds before listening, what to do with SIGTERM.
_PROGRAM = """
import os, signal, socket, sys, time
path, delay, on_term = sys.argv[1], float(sys.argv[2]), sys.argv[3]
journal = path + ".journal"
def note(text):
    with open(journal, "a") as file:
        file.write(f"{time.monotonic()} {text}\\n")
def term(*_):
    note("term")
    if on_term != "ignore":
        time.sleep(0.5 if on_term == "linger" else 0)
        os.unlink(path)
        note("end")
        sys.exit(0)
signal.signal(signal.SIGTERM, term)
note("start")
time.sleep(delay)
if os.path.exists(path):
    os.unlink(path)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen()
note("listen")
print("listening", flush=True)
while True:
    server.accept()[0].close()
"""


def program(path: Path, *, delay_s: float = 0.0, on_term: str = "obey") -> tuple[str, ...]:
    """The command of a program that listens on `path`; `on_term`: obey, linger or ignore."""
    return (sys.executable, "-I", "-S", "-c", _PROGRAM, str(path), str(delay_s), on_term)


def journal(path: Path) -> list[tuple[float, str]]:
    """What the program on `path` did and when, by the machine's monotonic clock."""
    file = Path(f"{path}.journal")
    if not file.exists():
        return []
    return [(float(at), what) for at, what in (line.split() for line in file.read_text().splitlines())]


def times(path: Path) -> dict[str, float]:
    """When the program on `path` last did what."""
    return {what: at for at, what in journal(path)}


def exists(pid: int) -> bool:
    """Does the process exist, be it as a zombie?"""
    return Path(f"/proc/{pid}").exists()


def spec(name: str, folder: Path, *, delay_s: float = 0.0, on_term: str = "obey", **fields: object) -> ProcessSpec:
    """A process that is ready when its socket listens."""
    path = folder / name
    values: dict[str, object] = {
        "name": name,
        "command": program(path, delay_s=delay_s, on_term=on_term),
        "ready": UnixProbe(str(path)),
        **fields,
    }
    return ProcessSpec(**values)  # type: ignore[arg-type]


def failing(name: str, code: str) -> ProcessSpec:
    """A process that runs a line of Python and is never ready."""
    return ProcessSpec(name=name, command=(sys.executable, "-I", "-S", "-c", code), ready=TcpProbe("127.0.0.1", 1))
