"""Probes that make workers generate: what their answers say, and when they are sent (SPEC F2)."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from fleet_kit import PHI, record
from http_kit import Answer, HttpServer, http_server

from recursant.config.model import Probes
from recursant.fleet.evidence import Evidence, Reason
from recursant.fleet.isolation import Isolation, Phase, Standing
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.names import PROBE_REQUEST_ID, REQUEST_ID
from recursant.sim import errors
from recursant.worker.probe import Outcome, probe_body, read_answer
from recursant.worker.prober import SOON_SHARE, Prober

PATIENCE_S = 20.0
PASSED, FAILED, UNKNOWN = Outcome.PASSED, Outcome.FAILED, Outcome.UNKNOWN


def completion(text: Any, **said: Any) -> bytes:
    """An answer with this text; `finish_reason` and `usage` as given."""
    choice = {"index": 0, "text": text} | {name: said.pop(name) for name in ("finish_reason",) if name in said}
    return json.dumps({"object": "text_completion", "choices": [choice], **said}).encode()


def counted(tokens: Any) -> dict[str, Any]:
    return {"prompt_tokens": 5, "completion_tokens": tokens}


@pytest.mark.parametrize(
    ("status", "body", "known", "outcome"),
    [
        (200, completion(" Paris"), None, PASSED),
        (200, completion(" Paris"), " Paris", PASSED),
        (200, completion(" London"), " Paris", FAILED),
        (200, completion(""), None, FAILED),
        # White space is what some models go on with.
        (200, completion(" \n"), None, PASSED),
        # A model may end at once: vLLM counts the token that said so.
        (200, completion("", finish_reason="stop", usage=counted(1)), None, PASSED),
        (200, completion("", finish_reason="stop", usage=counted(1)), "", PASSED),
        (200, completion("", finish_reason="stop", usage=counted(1)), " Paris", FAILED),
        (200, completion(" Paris", finish_reason="length", usage=counted(8)), "", FAILED),
        # Only special tokens, which no text shows.
        (200, completion("", finish_reason="length", usage=counted(8)), None, PASSED),
        # Nothing shows that it ran.
        (200, completion("", finish_reason="stop"), None, FAILED),
        (200, completion("", finish_reason="stop", usage=counted(0)), None, FAILED),
        (200, completion("", finish_reason="stop", usage=counted("1")), None, FAILED),
        (200, completion("", usage=counted(1)), None, FAILED),
        (200, completion("", finish_reason=None, usage=counted(1)), None, FAILED),
        (200, completion("", finish_reason="stop", usage=[1]), None, FAILED),
        # The engine gave it up.
        (200, completion(" Par", finish_reason="abort", usage=counted(1)), None, FAILED),
        (200, completion(" Par", finish_reason="error", usage=counted(1)), None, FAILED),
        (200, completion(None), None, FAILED),
        (200, b"{}", None, FAILED),
        (200, b'{"choices": []}', None, FAILED),
        (200, b'{"choices": ["text"]}', None, FAILED),
        (200, b"[]", None, FAILED),
        (200, b"[" * 100_000, None, FAILED),
        (500, errors.cuda_error().encoded(), None, FAILED),
        (500, b"", None, FAILED),
        # Full is not broken, and not every model completes text.
        (503, errors.queue_full().encoded(), None, UNKNOWN),
        (404, b"", None, UNKNOWN),
        (400, errors.bad_request("no").encoded(), " Paris", UNKNOWN),
    ],
)
def test_what_an_answer_says(status: int, body: bytes, known: str | None, outcome: Outcome) -> None:
    assert read_answer(status, body, known).outcome is outcome


def test_a_probe_asks_for_a_few_tokens_without_chance() -> None:
    assert probe_body(Probes(prompt="1 2 3", max_tokens=4), "m") == {
        "model": "m",
        "prompt": "1 2 3",
        "max_tokens": 4,
        "temperature": 0,
        "stream": False,
    }


class Rig:
    """One worker behind a real server, and the evidence about it."""

    def __init__(self, server: HttpServer, **rules: Any) -> None:
        self.server = server
        self.seen: list[tuple[Evidence, str]] = []
        self.records: dict[str, WorkerRecord] = {}
        self.changed = asyncio.Event()
        self.be()
        rules = {"interval_s": 0.1, "timeout_ms": 200} | rules
        self.prober = Prober(Probes(**rules), lambda: self.records, self._take)

    def be(self, **fields: Any) -> None:
        """Let the worker be like this."""
        self.records["w1"] = record("w1", endpoint=f"127.0.0.1:{self.server.port}", models=[PHI], **fields)

    def _take(self, worker_id: str, evidence: Evidence, *, text: str = "", since: float | None = None) -> None:
        assert (worker_id, since is not None) == ("w1", True)
        self.seen.append((evidence, text))
        self.changed.set()

    async def next(self) -> tuple[Evidence, str]:
        """The next evidence."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.seen:
                self.changed.clear()
                await self.changed.wait()
        return self.seen.pop(0)


@contextlib.asynccontextmanager
async def probing(answer: Answer, **rules: Any) -> AsyncIterator[Rig]:
    async with http_server(answer) as server:
        rig = Rig(server, **rules)
        task = asyncio.create_task(rig.prober.run())
        try:
            yield rig
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_worker_passes_until_its_answer_changes() -> None:
    texts = [" Paris", " Paris", " \u25a1\u25a1"]

    async def answer(path: str, body: bytes) -> tuple[int, bytes]:
        assert path == "/v1/completions"
        assert json.loads(body)["model"] == PHI.name
        return 200, completion(texts.pop(0) if len(texts) > 1 else texts[0])

    async with probing(answer) as rig:
        assert [(await rig.next())[0] for _ in range(3)] == [
            Evidence.PROBE_PASSED,
            Evidence.PROBE_PASSED,
            Evidence.PROBE_FAILED,
        ]
        # Another process may have other words.
        rig.be(incarnation="second")
        while (await rig.next())[0] is not Evidence.PROBE_PASSED:
            pass


async def test_a_probe_can_be_told_by_its_id() -> None:
    async def answer(_path: str, _body: bytes) -> tuple[int, bytes]:
        return 200, completion(" Paris")

    async with probing(answer) as rig:
        for _ in range(2):
            await rig.next()
        ids = [line for head in rig.server.heads for line in head.splitlines() if line.startswith(REQUEST_ID)]
    assert len(set(ids)) >= 2
    assert all(each.startswith(f"{REQUEST_ID}: {PROBE_REQUEST_ID}-") for each in ids)


async def test_answers_need_not_be_compared() -> None:
    texts = iter(range(1_000_000))

    async def answer(_path: str, _body: bytes) -> tuple[int, bytes]:
        return 200, completion(f"text {next(texts)}")

    async with probing(answer, compare=False) as rig:
        assert {(await rig.next())[0] for _ in range(3)} == {Evidence.PROBE_PASSED}


async def test_a_worker_that_hangs_fails_and_one_that_works_for_others_does_not() -> None:
    async def answer(_path: str, _body: bytes) -> tuple[int, bytes]:
        await asyncio.sleep(PATIENCE_S)
        return 200, completion("late")

    async with probing(answer) as rig:
        assert await rig.next() == (Evidence.PROBE_FAILED, "no answer within 0.2 s")
        asked = len(rig.server.requests)
        rig.be(token_rate=50.0)
        rig.seen.clear()
        async with asyncio.timeout(PATIENCE_S):
            while len(rig.server.requests) < asked + 3:  # noqa: ASYNC110 - the server has no event
                await asyncio.sleep(0.01)
        # A probe that was under way may have counted still.
        assert len(rig.seen) <= 1


async def test_a_worker_that_cannot_be_reached_or_talks_without_end_fails() -> None:
    async def cut(_path: str, _body: bytes) -> tuple[int, bytes]:
        raise ConnectionError

    async def endless(_path: str, _body: bytes) -> tuple[int, bytes]:
        return 200, b"x" * 100_000

    async with probing(cut) as rig:
        evidence, text = await rig.next()
        assert evidence is Evidence.PROBE_FAILED
        assert text.startswith("it cannot be reached")
    async with probing(endless) as rig:
        assert await rig.next() == (Evidence.PROBE_FAILED, "its answer does not end")


@pytest.mark.parametrize(
    "status", [status for status in WorkerStatus if status is not WorkerStatus.READY], ids=lambda status: status.value
)
async def test_only_usable_workers_are_probed(status: WorkerStatus) -> None:
    async def answer(_path: str, _body: bytes) -> tuple[int, bytes]:
        return 200, completion("text")

    async with probing(answer) as rig:
        await rig.next()
        rig.be(status=status)
        # What was under way may end.
        await asyncio.sleep(0.1)
        asked = len(rig.server.requests)
        await asyncio.sleep(0.4)
        assert len(rig.server.requests) == asked


async def test_a_worker_that_was_never_heard_is_not_probed() -> None:
    async def answer(_path: str, _body: bytes) -> tuple[int, bytes]:
        return 200, completion("text")

    async with probing(answer) as rig:
        await rig.next()
        rig.be(incarnation="from a load")
        rig.records["w1"] = replace(rig.records["w1"], last_beat=None)
        # What was under way may end.
        await asyncio.sleep(0.1)
        asked = len(rig.server.requests)
        await asyncio.sleep(0.4)
        assert len(rig.server.requests) == asked


async def test_a_worker_on_trial_is_probed_sooner() -> None:
    async def answer(_path: str, _body: bytes) -> tuple[int, bytes]:
        return 200, completion("text")

    # Its turn would come within an hour.
    async with probing(answer, interval_s=3_600.0) as rig:
        await asyncio.sleep(0.2)
        assert rig.server.requests == []
        isolation = Isolation("w1", "first", Reason.OOM, "", 1, 0.0, 1e9)
        rig.records["w1"] = replace(rig.records["w1"], standing=Standing(isolation, Phase.TRIAL))
        await asyncio.sleep(0.2)
        turn = rig.prober.turns["w1"]
        assert turn.due - time.monotonic() <= 3_600.0 * SOON_SHARE
