"""Trace files by name: which format a file has, and where the well-known ones are in a folder."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.azure import HEADER, read_azure
from recursant.sim.workloads.labels import ONE_AGENT, Label
from recursant.sim.workloads.mooncake import CONVERSATION_BIN_S, read_mooncake
from recursant.sim.workloads.trace_file import TraceError, numbered_lines


class Known(StrEnum):
    """The published traces that benchmarks use."""

    AZURE_CONVERSATION = "azure-conversation"
    MOONCAKE_CONVERSATION = "mooncake-conversation"
    MOONCAKE_SYNTHETIC = "mooncake-synthetic"


# Names of the file in a folder, without `.gz`: ours, then the publisher's.
_FILES: Final = {
    Known.AZURE_CONVERSATION: ("azure2023_conv.csv", "AzureLLMInferenceTrace_conv.csv"),
    Known.MOONCAKE_CONVERSATION: ("mooncake_conversation.jsonl", "conversation_trace.jsonl"),
    Known.MOONCAKE_SYNTHETIC: ("mooncake_synthetic.jsonl", "synthetic_trace.jsonl"),
}


def find_trace(folder: Path, known: Known) -> Path | None:
    """Where a published trace is in `folder`, compressed or not; None: it is not there."""
    for name in _FILES[known]:
        for candidate in (folder / name, folder / f"{name}.gz"):
            if candidate.is_file():
                return candidate
    return None


def read_trace(path: Path, label: Label = ONE_AGENT, *, seed: int = 0) -> Iterator[Arrival]:
    """The arrivals of a trace file in one of the formats, which its first line tells.

    The coarse stamps of Mooncake's conversation trace, known by its file's name, are spread over their 3 seconds.

    Raises:
        TraceError: the file cannot be read, has no known format, or a line is wrong.
    """
    number, first = next(numbered_lines(path), (1, ""))
    if first.startswith("{"):
        spread = path.name.removesuffix(".gz") in _FILES[Known.MOONCAKE_CONVERSATION]
        return read_mooncake(path, label, bin_s=CONVERSATION_BIN_S if spread else 0.0, seed=seed)
    if first.startswith(HEADER[0]):
        return read_azure(path, label)
    raise TraceError(
        path, number, f"neither Azure's CSV (header {','.join(HEADER)}) nor Mooncake's JSON lines: {first[:60]!r}"
    )
