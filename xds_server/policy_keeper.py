"""What was applied, on the control plane's own disk: for a start after Redis and everybody else has lost it."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import policy_to_dict
from recursant.store.atomic_file import write_atomically
from recursant.store.policies import MAX_POLICIES, StoredPolicy

# Not the name of extproc's own file: both may lie in one folder.
KEPT_FILE: Final = "applied-policies.json"
MAX_FILE_BYTES: Final = 64 * 1024 * 1024
# Changes within this time are written together, seconds.
WRITE_AFTER_S: Final = 0.5

_FORMAT: Final = 1

_log = logging.getLogger(__name__)

Entries = Mapping[str, StoredPolicy]


def dump_entries(entries: Entries) -> str:
    """The entries, the deleted ones among them, as text."""
    written = [
        {
            "agent_id": name,
            "set_by": entry.set_by,
            "set_at_ms": entry.set_at_ms,
            "policy": None if entry.policy is None else policy_to_dict(entry.policy),
        }
        for name, entry in sorted(entries.items())
    ]
    return json.dumps({"format": _FORMAT, "entries": written}, indent=1)


def parse_entries(text: str) -> tuple[dict[str, StoredPolicy], list[str]]:
    """The entries in `text` that can be used, and what is wrong with each of the others.

    Raises:
        ValueError: it is no text of this kind, or has too many entries.
    """
    data: Any = json.loads(text)
    if not isinstance(data, dict) or data.get("format") != _FORMAT or not isinstance(data.get("entries"), list):
        raise ValueError("it is not of a format that is known here")
    if len(data["entries"]) > MAX_POLICIES:
        raise ValueError(f"it has {len(data['entries'])} entries, allowed are {MAX_POLICIES}")
    entries: dict[str, StoredPolicy] = {}
    problems: list[str] = []
    for number, each in enumerate(data["entries"]):
        try:
            entry = _read(each)
        except ValueError as error:
            problems.append(f"entries[{number}]: {error}")
        else:
            entries[entry.agent_id] = entry
    return entries, problems


def _read(data: object) -> StoredPolicy:
    if not isinstance(data, dict):
        raise ValueError("is no object")
    name, set_by, set_at_ms = data.get("agent_id"), data.get("set_by"), data.get("set_at_ms")
    if not isinstance(name, str) or not isinstance(set_by, str):
        raise ValueError("agent_id and set_by must be text")
    if not isinstance(set_at_ms, int) or isinstance(set_at_ms, bool) or not 0 <= set_at_ms < 1 << 63:
        raise ValueError("set_at_ms must be a time in milliseconds")
    try:
        if data.get("policy") is None:
            # As strict with the name of one that is gone.
            AgentPolicy.model_validate({"agent_id": name})
            return StoredPolicy.gone(name, set_by=set_by, set_at_ms=set_at_ms)
        policy = AgentPolicy.model_validate(data["policy"])
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ValueError(f"policy {name[:64]!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if policy.agent_id != name:
        raise ValueError(f"policy {name[:64]!r}: agent_id: is {policy.agent_id!r}")
    return StoredPolicy.of(policy, set_by=set_by, set_at_ms=set_at_ms)


class PolicyKeeper:
    """Keeps what was applied in a folder.

    Args:
        folder: made when first written to.
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / KEPT_FILE
        self._changed = asyncio.Event()

    def restore(self) -> dict[str, StoredPolicy]:
        """What the last run kept, as far as it can be used."""
        try:
            if self._file.stat().st_size > MAX_FILE_BYTES:
                raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
            entries, problems = parse_entries(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("the policies kept in %s cannot be used: %s", self._file, error)
            return {}
        for problem in problems:
            _log.warning("one of the policies kept in %s cannot be used: %s", self._file, problem)
        return entries

    def changed(self) -> None:
        """Something was applied or deleted: write it soon."""
        self._changed.set()

    async def run(self, read: Callable[[], Entries]) -> None:
        """Write what `read` gives after every change, until cancelled; the last one at the end, too."""
        try:
            while True:
                await self._changed.wait()
                await asyncio.sleep(WRITE_AFTER_S)
                self._changed.clear()
                await asyncio.to_thread(self._write, dump_entries(read()))
        finally:
            if self._changed.is_set():
                self._write(dump_entries(read()))

    def _write(self, text: str) -> None:
        if len(text) > MAX_FILE_BYTES:
            _log.warning("the policies are not kept in %s: they are more than %d bytes", self._file, MAX_FILE_BYTES)
            return
        try:
            write_atomically(self._file, text)
        except OSError as error:
            _log.warning("the policies cannot be kept in %s: %s", self._file, error.strerror)
