"""The log of decisions: what is kept, what it says, and that it stays small."""

import json
import random
from typing import Any

import pytest
from fleet_kit import record
from test_session import Bench

from extproc.decisions import MAX_EXPLAINED_PER_S, DecisionLog
from extproc.session import RequestSession
from recursant.config.model import Decisions, Routing


class Logged(Bench):
    """Sessions with a log."""

    def __init__(self, *records: Any, sample: float = 0.0, keep: int = 100, took_s: float = 0.0001) -> None:
        config = {
            "agents": [
                {"agent_id": "chat-web", "model_family": "qwen"},
                {"agent_id": "big", "model_family": "qwen", "min_vram_mb": 900_000},
                {"agent_id": "low", "model_family": "qwen", "class": "low"},
                {"agent_id": "degrade", "model_family": "phi", "fallback_strategy": "degrade_to_qwen"},
            ]
        }
        self.now = 1_000.0
        self.took_s = took_s
        self.log: DecisionLog | None = None
        super().__init__(*records, config=config)
        self.gateway.clock = self.clock
        self.log = DecisionLog(
            Decisions(sample=sample, keep=keep),
            Routing(),
            self.table,
            clock=self.clock,
            rng=random.Random(5),
            wall_clock=lambda: 1_700_000_000.0,
        )
        self.session = self.new_session()

    def clock(self) -> float:
        self.now += self.took_s
        return self.now

    def new_session(self) -> RequestSession:
        self.late = []
        return RequestSession(self.gateway, self.desk, self._deliver, self.log)

    def one(self, agent: str | None, *, ends: bool = True, **headers: str) -> None:
        self.session = self.new_session()
        self.request(body=False, **headers, **({} if agent is None else {"x_agent_id": agent}))
        if ends:
            self.session.close()

    def notes(self, **fields: Any) -> list[dict[str, Any]]:
        assert self.log is not None
        found: list[dict[str, Any]] = self.log.read(**{"limit": 1_000} | fields)["decisions"]
        return found


def test_a_sampled_decision_says_all_of_itself() -> None:
    bench = Logged(record("w1", peak_token_rate=100.0), record("w2", running_requests=3), sample=1.0)
    bench.request(body=False, x_agent_id="chat-web", x_request_id="abc")
    (running,) = bench.notes()
    assert (running["outcome"], running["worker"]) == ("running", None)
    # The second worker of the list served, as after a retry.
    bench.response(upstream="10.0.0.2:8000")
    bench.session.close()
    (note,) = bench.notes()
    assert (note["request_id"], note["agent"], note["class"]) == ("abc", "chat-web", "normal")
    assert (note["kept_because"], note["time"]) == ("sample", 1_700_000_000.0)
    assert (note["pick"], note["worker"]) == (["w1", "w2"], "w2")
    assert (note["outcome"], note["status"]) == ("ok", 200)
    assert (note["considered"], note["removed"]) == (2, {})
    assert [each["worker"] for each in note["scores"]] == ["w1", "w2"]
    # As the pick saw it: its own count is not in there.
    assert [each["load"] for each in note["scores"]] == [0.0, 3.0]
    assert note["decision_us"] > 0
    json.dumps(note)


def test_what_is_ordinary_is_not_kept() -> None:
    bench = Logged(record("w1"))
    for _ in range(50):
        bench.one("chat-web")
        bench.one(None)
    assert bench.notes() == []


def test_the_sample_has_about_its_share() -> None:
    bench = Logged(record("w1"), sample=0.25, keep=1_000)
    for _ in range(1_000):
        bench.one("chat-web")
    assert 180 < len(bench.notes()) < 320


@pytest.mark.parametrize(
    ("agent", "why", "said"),
    [
        ("big", "refused", {"status": 503, "refusal": "no_vram", "outcome": "refused", "pick": []}),
        ("degrade", "fallback", {"fallback": "degrade_to_qwen", "pick": ["w1"]}),
    ],
)
def test_refusals_and_fallbacks_are_always_kept(agent: str, why: str, said: dict[str, Any]) -> None:
    bench = Logged(record("w1", free_vram_mb=1_000))
    bench.one(agent)
    (note,) = bench.notes()
    assert note["kept_because"] == why
    assert {key: note[key] for key in said} == said
    if why == "refused":
        assert note["removed"] == {"vram": {"count": 1, "workers": ["w1"]}}


def test_a_request_that_makes_no_sense_is_kept_without_an_explanation() -> None:
    bench = Logged(record("w1"))
    bench.one("chat-web", x_agent_priority="much")
    (note,) = bench.notes()
    assert (note["status"], note["refusal"], note["considered"]) == (400, "invalid_request", None)


def test_slow_decisions_are_always_kept() -> None:
    bench = Logged(record("w1"), took_s=0.004)
    bench.one("chat-web")
    assert [note["kept_because"] for note in bench.notes()] == ["slow"]


def test_a_held_request_says_how_long_it_waited() -> None:
    bench = Logged(record("w1", running_requests=8, max_num_seqs=10), sample=1.0)
    bench.one("low", ends=False)
    (note,) = bench.notes()
    assert (note["outcome"], note["pick"], note["removed"]["slots"]["count"]) == ("running", [], 1)
    bench.table.upsert(record("w1", running_requests=0, max_num_seqs=10))
    bench.now += 2
    bench.desk.run(bench.now)
    bench.response(upstream="10.0.0.1:8000")
    bench.session.close()
    (note,) = bench.notes()
    assert (note["pick"], note["worker"], note["outcome"]) == (["w1"], "w1", "ok")
    assert note["held_ms"] == pytest.approx(2_000, abs=10)


def test_the_log_is_bounded_and_refusals_do_not_push_the_sample_out() -> None:
    bench = Logged(record("w1", free_vram_mb=1), sample=1.0, keep=5)
    for _ in range(7):
        bench.one("chat-web")
    for _ in range(50):
        bench.one("big")
    kept = [note["kept_because"] for note in bench.notes()]
    assert (kept.count("sample"), kept.count("refused")) == (5, 5)


def test_a_flood_of_refusals_is_kept_but_not_explained_one_by_one() -> None:
    bench = Logged(record("w1", free_vram_mb=1), keep=1_000, took_s=0.0)
    for _ in range(MAX_EXPLAINED_PER_S + 30):
        bench.one("big")
    explained = [note["considered"] is not None for note in bench.notes()]
    assert (explained.count(True), explained.count(False)) == (MAX_EXPLAINED_PER_S, 30)
    bench.now += 1
    bench.one("big")
    assert bench.notes()[-1]["considered"] == 1


def test_a_flood_of_refusals_takes_no_explanation_from_the_sample_and_that_is_bounded_too() -> None:
    bench = Logged(record("w1", free_vram_mb=1), sample=1.0, keep=1_000, took_s=0.0)
    for _ in range(MAX_EXPLAINED_PER_S + 5):
        bench.one("big")
        bench.one("chat-web")
    explained = [note["considered"] is not None for note in bench.notes() if note["kept_because"] == "sample"]
    assert (explained.count(True), explained.count(False)) == (MAX_EXPLAINED_PER_S, 5)


def test_readers_find_the_newest_the_agent_s_and_what_ended_since() -> None:
    bench = Logged(record("w1", free_vram_mb=1), sample=1.0)
    for agent in ("chat-web", "big", "chat-web"):
        bench.one(agent)
    assert bench.log is not None
    assert [note["agent"] for note in bench.notes(limit=2)] == ["big", "chat-web"]
    assert [note["agent"] for note in bench.notes(agent="big")] == ["big"]
    cursor = bench.log.read(limit=1)["cursor"]
    assert bench.log.read(limit=10, after=cursor) == {"decisions": [], "cursor": cursor}
    bench.one("chat-web", ends=False)
    assert bench.notes(after=cursor) == []
    bench.session.close()
    bench.one("big")
    first = bench.log.read(limit=1, after=cursor)
    second = bench.log.read(limit=1, after=first["cursor"])
    assert [note["agent"] for note in (*first["decisions"], *second["decisions"])] == ["chat-web", "big"]
    # A cursor of a process that has gone is the beginning.
    assert len(bench.notes(after="ffffffff:3")) == 5
    assert len(bench.notes(after="nonsense")) == 5


def test_no_prompt_and_no_client_s_own_words_but_its_id() -> None:
    bench = Logged(record("w1"), sample=1.0)
    bench.session = bench.new_session()
    bench.request(x_agent_id="unheard-of", x_session_id="secret-session")
    bench.body(b'{"model": "auto", "messages": [{"role": "user", "content": "secret prompt"}]}')
    bench.session.close()
    text = json.dumps(bench.notes())
    assert "secret" not in text
    assert "unheard-of" not in text
