"""Watches the configuration file and takes its edits.

It is asked for by `stat`, a few times a second. Editors and deployments replace files in many ways: rename over it, a
link that turns to another folder, writing in place, a network file system that tells nobody. Notifications of the
kernel are about one of these each; the time, size and identity of what the path leads to now is about all of them, and
asking five times a second costs a few microseconds.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from recursant.config.load import load_config
from recursant.config.model import Config
from recursant.config.problem import ConfigError
from recursant.config.reload import Edit, Outcome, Reloader

# How often the file is looked at, and how long it must have been left alone before it is read. Seconds.
INTERVAL_S: Final = 0.2

# What tells one content of a file from another; None where there is no file.
_Signature = tuple[int, int, int, int, int] | None


class ConfigWatch:
    """Looks at one file until cancelled.

    Args:
        path: the file, as the operator named it.
        reloader: decides about edits.
        on_edit: told of every edit, on the event loop, but for a first look that finds nothing new.
    """

    def __init__(self, path: Path, reloader: Reloader, on_edit: Callable[[Edit], None]) -> None:
        self._path = path
        self._reloader = reloader
        self._on_edit = on_edit

    async def run(self) -> None:
        """Watch, from a first look on: the file may have changed since it was read for the start."""
        seen: _Signature | str = "never"
        first = True
        while True:
            now = await asyncio.to_thread(_signature, self._path)
            if now != seen:
                await asyncio.sleep(INTERVAL_S)
                # Still being written: look again, and take it when it rests.
                if await asyncio.to_thread(_signature, self._path) != now:
                    continue
                seen = now
                edit = self._reloader.take(await asyncio.to_thread(_read, self._path))
                if not (first and edit.outcome in (Outcome.UNCHANGED, Outcome.WAITS)):
                    self._on_edit(edit)
                first = False
            await asyncio.sleep(INTERVAL_S)


def _read(path: Path) -> Config | ConfigError:
    try:
        return load_config(path)
    except ConfigError as error:
        return error


def _signature(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
