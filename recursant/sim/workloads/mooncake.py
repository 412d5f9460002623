"""Mooncake's traces (FAST 2025; Apache-2.0): arrivals with the blocks of their prompts, so prefixes can be shared.

The format: JSON lines of `timestamp` (ms), `input_length`, `output_length` (tokens) and `hash_ids`, one for each
block of 512 prompt tokens, the last of which may be short. Equal ids mean equal prefixes up to there. Agents and
sessions are not in it: who shares a prefix with whom says which requests belong together, see `_Sessions`.
"""

import json
import random
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.labels import ONE_AGENT, Label
from recursant.sim.workloads.trace_file import TraceError, numbered_lines, whole_number

BLOCK_TOKENS: Final = 512
# The conversation trace's stamps are about 3 s apart (2,997 to 3,003 ms): what came in between stands at its start.
CONVERSATION_BIN_S: Final = 3.0


def read_mooncake(path: Path, label: Label = ONE_AGENT, *, bin_s: float = 0.0, seed: int = 0) -> Iterator[Arrival]:
    """The arrivals of a file in this format, the first stamp at 0 s.

    Args:
        path: the file.
        label: names the agent of a request.
        bin_s: stamps stand for this many seconds: requests of one stamp are spread over them at random, evenly, but
            never beyond the next stamp. 0: they come at the stamp, all at once.
        seed: of the spreading.

    Raises:
        TraceError: the file cannot be read; a line is not in the format; its times go back.
    """
    sessions = _Sessions()
    draw = random.Random(seed)
    groups = groupby(_rows(path), key=lambda row: row[0])
    start: int | None = None
    group = _listed(next(groups, None))
    while group is not None:
        stamp, rows = group
        following = _listed(next(groups, None))
        start = stamp if start is None else start
        room_s = bin_s if following is None else min(bin_s, (following[0] - stamp) / 1_000)
        offsets = sorted(draw.random() * room_s for _ in rows) if bin_s > 0 else [0.0] * len(rows)
        for offset, (_, prompt, output, blocks) in zip(offsets, rows, strict=True):
            at = (stamp - start) / 1_000 + offset
            yield Arrival(at, label(prompt, output), prompt, output, sessions.of(blocks), blocks)
        group = following


_Row = tuple[int, int, int, tuple[int, ...]]


def _listed(group: tuple[int, Iterator[_Row]] | None) -> tuple[int, list[_Row]] | None:
    """A group with its rows out of the iterator, which moves on with the next group."""
    return None if group is None else (group[0], list(group[1]))


def _rows(path: Path) -> Iterator[_Row]:
    before = 0
    for number, line in numbered_lines(path):
        try:
            row: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(path, number, f"not JSON: {error}") from None
        if not isinstance(row, dict):
            raise TraceError(path, number, "each line must be a JSON object")
        stamp = whole_number(path, number, "timestamp", row.get("timestamp"), 0)
        if stamp < before:
            raise TraceError(path, number, f"timestamp {stamp} is before that of the line above, {before}")
        before = stamp
        prompt = whole_number(path, number, "input_length", row.get("input_length"), 1)
        output = max(1, whole_number(path, number, "output_length", row.get("output_length"), 0))
        yield stamp, prompt, output, _blocks(path, number, row.get("hash_ids"), prompt)


def _blocks(path: Path, number: int, given: object, prompt: int) -> tuple[int, ...]:
    if not isinstance(given, list):
        raise TraceError(path, number, f"hash_ids must be a list of whole numbers, not {given!r:.80}")
    blocks = tuple(whole_number(path, number, "each of hash_ids", block, 0) for block in given)
    most = -(-prompt // BLOCK_TOKENS)
    if len(blocks) > most:
        raise TraceError(
            path, number, f"hash_ids has {len(blocks)} blocks; {prompt} tokens have at most {most} of {BLOCK_TOKENS}"
        )
    return blocks


class _Sessions:
    """Names sessions by shared prefixes: whoever shares more than one block with an earlier request continues it.

    One block alone is no sign: in the conversation trace all prompts begin with the same one. Where two requests
    continue the same one in different ways, they are one session: for affinity that is what they are.
    """

    def __init__(self) -> None:
        # One entry for each block id of the file.
        self._owners: dict[int, str] = {}
        self._count = 0

    def of(self, blocks: tuple[int, ...]) -> str:
        """The session of a request with these blocks."""
        session = self._owners.get(blocks[1]) if len(blocks) > 1 else None
        if session is None:
            session = f"c{self._count}"
            self._count += 1
        for block in blocks[1:]:
            self._owners.setdefault(block, session)
        return session
