"""Trace readers: small files in the published formats, and what is wrong with others."""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.folder import Known, find_trace, read_trace
from recursant.sim.workloads.labels import always, by_length
from recursant.sim.workloads.mooncake import read_mooncake
from recursant.sim.workloads.timing import at_rate, part, within
from recursant.sim.workloads.trace_file import MAX_LINE, TraceError

# As Azure writes them: 7 digits, no line end at the end.
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n"
    "2023-11-16 18:16:46.6805900,4200,0"
)


def mooncake_line(timestamp: Any, prompt: Any = 1_000, output: Any = 10, blocks: Any = (0, 1)) -> str:
    given = list(blocks) if isinstance(blocks, tuple) else blocks
    return json.dumps({"timestamp": timestamp, "input_length": prompt, "output_length": output, "hash_ids": given})


def written(path: Path, lines: Iterable[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("compressed", [False, True])
def test_azure_conversation_trace(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "azure.csv"
    path.write_bytes(gzip.compress(AZURE.encode()) if compressed else AZURE.encode())
    assert list(read_trace(path, always("chat"))) == [
        Arrival(0.0, "chat", 374, 44),
        Arrival(4.314579, "chat", 396, 109),  # Python keeps 6 of the 7 digits
        Arrival(60.0, "chat", 4_200, 1),
    ]


def test_mooncake_trace(tmp_path: Path) -> None:
    lines = [
        mooncake_line(500, blocks=(7, 8)),
        mooncake_line(2_500, 1_025, 1, (7, 8, 9)),
        mooncake_line(2_600, 100, 5, (7,)),
    ]
    path = tmp_path / "trace.jsonl"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert list(read_trace(path)) == [
        Arrival(0.0, "trace", 1_000, 10, "c0", (7, 8)),
        Arrival(2.0, "trace", 1_025, 1, "c0", (7, 8, 9)),
        # One block that all share does not make a conversation.
        Arrival(2.1, "trace", 100, 5, "c1", (7,)),
    ]


def test_coarse_stamps_are_spread_over_their_bin_in_order_and_never_into_the_next(tmp_path: Path) -> None:
    lines = [mooncake_line(stamp) for stamp in (0, 3_000, 4_000, 7_000) for _ in range(50)]
    path = written(tmp_path / "conversation_trace.jsonl", lines)
    times = [arrival.at_s for arrival in read_trace(path, seed=1)]
    assert times == sorted(times)
    for index, (begins, ends) in enumerate([(0, 3), (3, 4), (4, 7), (7, 10)]):
        group = times[50 * index : 50 * (index + 1)]
        assert begins <= group[0]
        assert group[-1] < ends
        # Evenly in the mean: 50 draws are off the middle by more than 5 standard errors once in a million.
        assert sum(group) / 50 == pytest.approx((begins + ends) / 2, abs=5 * (ends - begins) / (12 * 50) ** 0.5)
    assert times == [arrival.at_s for arrival in read_trace(path, seed=1)]
    assert times != [arrival.at_s for arrival in read_trace(path, seed=2)]


def test_the_same_file_under_another_name_is_not_spread(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.jsonl", [mooncake_line(0), mooncake_line(0)])
    assert [arrival.at_s for arrival in read_trace(path)] == [0.0, 0.0]
    assert max(arrival.at_s for arrival in read_mooncake(path, bin_s=3.0)) > 0.0


def test_known_traces_are_found_under_both_names(tmp_path: Path) -> None:
    assert find_trace(tmp_path, Known.AZURE_CONVERSATION) is None
    (tmp_path / "AzureLLMInferenceTrace_conv.csv").touch()
    assert find_trace(tmp_path, Known.AZURE_CONVERSATION) == tmp_path / "AzureLLMInferenceTrace_conv.csv"
    (tmp_path / "azure2023_conv.csv.gz").touch()
    assert find_trace(tmp_path, Known.AZURE_CONVERSATION) == tmp_path / "azure2023_conv.csv.gz"
    assert find_trace(tmp_path, Known.MOONCAKE_SYNTHETIC) is None


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROW = "2023-11-16 18:15:46.6805900,374,44"


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        ([HEADER, ROW, "2023-11-16 18:15:46,374"], 3, "3 fields"),
        ([HEADER, "yesterday,374,44"], 2, "TIMESTAMP"),
        ([HEADER, ROW, "2023-11-16 18:15:45.1,3,4"], 3, "before"),
        ([HEADER, ROW, "2023-11-16 18:15:47+00:00,3,4"], 3, "time zone"),
        ([HEADER, "2023-11-16 18:15:46,0,44"], 2, "ContextTokens"),
        ([HEADER, "2023-11-16 18:15:46,1.5,44"], 2, "'1.5'"),
        ([HEADER, "", "2023-11-16 18:15:46,7,-1"], 3, "GeneratedTokens"),
        (["TIMESTAMP,Prompt,Output", ROW], 1, "header"),
        (["something else"], 1, "neither"),
        ([mooncake_line(0), "{"], 2, "not JSON"),
        ([mooncake_line(0), "[1]"], 2, "object"),
        ([mooncake_line(0), "[" * 100_000], 2, "JSON"),
        ([mooncake_line(5), mooncake_line(4)], 2, "before"),
        ([mooncake_line("5")[:-1] + ', "timestamp": true}'], 1, "timestamp"),
        ([mooncake_line(-1)], 1, "timestamp"),
        ([mooncake_line(0, prompt=0)], 1, "input_length"),
        ([mooncake_line(0, output=None)], 1, "output_length"),
        ([mooncake_line(0, blocks="0 1")], 1, "hash_ids"),
        ([mooncake_line(0, blocks=[0, "x"])], 1, "hash_ids"),
        ([mooncake_line(0, 1_024, blocks=(0, 1, 2))], 1, "at most 2"),
        ([mooncake_line(0), "x" * (MAX_LINE + 1)], 2, "longer"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, lines: list[str], line: int, words: str) -> None:
    path = written(tmp_path / "trace", lines)
    with pytest.raises(TraceError, match=words) as caught:
        list(read_trace(path))
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "neither"),
        (b"\xff\xfe\xff", "UTF-8"),
        # Without the time, or the test would have another name in each run.
        (gzip.compress(AZURE.encode(), mtime=0)[:40], "gzip"),
        (gzip.compress(AZURE.encode(), mtime=0)[:-8] + b"12345678", "gzip|CRC"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "trace"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=words) as caught:
        list(read_trace(path))
    assert str(path) in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        list(read_trace(tmp_path / "none.csv"))


def test_rate_part_and_context() -> None:
    arrivals = [Arrival(at, "a", prompt, 10) for at, prompt in ((0.0, 10), (4.0, 100), (8.0, 20))]
    assert [one.at_s for one in at_rate(arrivals, 2.0)] == [0.0, 2.0, 4.0]
    assert [one.at_s for one in part(arrivals, seconds=8.0)] == [0.0, 4.0]
    assert [one.at_s for one in part(arrivals, count=1)] == [0.0]
    assert [one.at_s for one in part(arrivals)] == [0.0, 4.0, 8.0]
    assert [one.at_s for one in within(arrivals, 30)] == [0.0, 8.0]
    with pytest.raises(ValueError, match="above 0"):
        at_rate(arrivals, 0.0)


def test_agents_by_length() -> None:
    label = by_length()
    assert label(511, 127) == "code-completion"
    assert label(512, 127) == label(511, 128) == label(4_095, 1) == "chat-web"
    assert label(4_096, 1) == "batch-summary"
