"""Asks the name service where the workers are, again and again."""

import asyncio
import logging
import math
import random
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from heapq import nsmallest
from typing import Final

from recursant.store.quiet_log import QuietLog

# A name is asked about again after this long, give or take a fifth. Seconds.
REFRESH_S: Final = 5.0
# Sooner where there was no answer.
RETRY_S: Final = 1.0
# Lookups at once: each takes a thread, and a name server that hangs keeps it for a while.
MAX_LOOKUPS: Final = 8
# Of them for names at which nobody is known to live: thousands of those must not keep others waiting.
MAX_IDLE_LOOKUPS: Final = 3

# "There is no such name", as opposed to "I cannot tell now".
_NO_SUCH_NAME: Final = (socket.EAI_NONAME, socket.EAI_NODATA)
_log = logging.getLogger(__name__)


class HostResolver:
    """Keeps asking for the addresses of whatever names are in use."""

    def __init__(
        self, names: Callable[[], Mapping[str, bool]], on_answer: Callable[[str, Sequence[str]], None]
    ) -> None:
        """Ask nobody yet.

        Args:
            names: those in use, and whether anybody there is known to live.
            on_answer: gets a name and its addresses, none where there is no such name. No answer, no call.
        """
        self._names = names
        self._on_answer = on_answer
        self._due: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._warnings = QuietLog(_log)

    def wake(self) -> None:
        """There may be new names."""
        self._wake.set()

    async def run(self) -> None:
        """Ask until cancelled."""
        running: dict[str, asyncio.Task[None]] = {}
        try:
            while True:
                now = time.monotonic()
                names = self._names()
                self._due = {name: due for name, due in self._due.items() if name in names}
                for name in self._next(names, running, now):
                    running[name] = asyncio.create_task(self._ask(name))
                self._wake.clear()
                waiting = asyncio.create_task(self._wake.wait())
                try:
                    await asyncio.wait((waiting, *running.values()), timeout=RETRY_S / 4, return_when="FIRST_COMPLETED")
                finally:
                    waiting.cancel()
                for name in [name for name, task in running.items() if task.done()]:
                    running.pop(name).result()
        finally:
            for task in running.values():
                task.cancel()

    def _next(self, names: Mapping[str, bool], running: Collection[str], now: float) -> list[str]:
        """The names to ask about now: where somebody lives before the others, then whoever waits for longest."""
        room = MAX_LOOKUPS - len(running)
        idle_room = min(room, MAX_IDLE_LOOKUPS - sum(not names.get(name, False) for name in running))
        due = [name for name in names if name not in running and self._due.get(name, -math.inf) <= now]

        def waits_since(name: str) -> float:
            return self._due.get(name, -math.inf)

        chosen = nsmallest(room, (name for name in due if names[name]), key=waits_since)
        idle_room = min(idle_room, room - len(chosen))
        return chosen + nsmallest(idle_room, (name for name in due if not names[name]), key=waits_since)

    async def _ask(self, name: str) -> None:
        addresses: list[str] | None
        try:
            found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
            addresses = [str(sockaddr[0]) for *_, sockaddr in found]
        except socket.gaierror as error:
            addresses = [] if error.errno in _NO_SUCH_NAME else None
            self._warnings.warning("cannot resolve %.253r: %s", name, error.strerror)
        except (OSError, UnicodeError) as error:
            addresses = None
            self._warnings.warning("cannot resolve %.253r: %s", name, error)
        self._due[name] = time.monotonic() + (REFRESH_S if addresses else RETRY_S) * random.uniform(0.8, 1.2)
        if addresses is not None:
            self._on_answer(name, addresses)
