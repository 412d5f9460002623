from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recursant.admission.classes import class_by_rules
from recursant.admission.memory import CacheReport
from recursant.admission.queue import Held, HoldQueue
from recursant.admission.rules import AGEING_MS, WATER_MARK, ClassRules
from recursant.admission.shares import aged_class
from recursant.admission.verdict import Degrade, Hold, TakeTurns, Verdict, verdict
from recursant.agents.policy import AgentPolicy
from recursant.agents.priority import PriorityClass
from recursant.problems import ApiProblem
from recursant.routing.picker import Refusal
from recursant.v1.worker_state_pb2 import WorkerState

AGEING_S = AGEING_MS / 1_000
LOW, NORMAL, HIGH, CRITICAL = PriorityClass.LOW, PriorityClass.NORMAL, PriorityClass.HIGH, PriorityClass.CRITICAL


def policy(**fields: Any) -> AgentPolicy:
    return AgentPolicy.model_validate({"agent_id": "a", "model_family": "qwen", **fields})


# --- classes by rule ---


@pytest.mark.parametrize(
    ("base", "fields", "request_", "expected"),
    [
        # Short: input < 512 and output < 128 tokens, one class up at most, never above High by length.
        (LOW, {}, {"input_tokens": 511, "output_tokens": 127}, NORMAL),
        (NORMAL, {}, {"input_tokens": 511, "output_tokens": 127}, HIGH),
        (HIGH, {}, {"input_tokens": 511, "output_tokens": 127}, HIGH),
        (CRITICAL, {}, {"input_tokens": 511, "output_tokens": 127}, CRITICAL),
        (LOW, {}, {"input_tokens": 512, "output_tokens": 127}, LOW),
        (LOW, {}, {"input_tokens": 511, "output_tokens": 128}, LOW),
        (LOW, {}, {"input_tokens": 511, "output_tokens": None}, LOW),
        (LOW, {}, {"input_tokens": None, "output_tokens": 1}, LOW),
        # Report words go to Low, short or not.
        (HIGH, {}, {"text": "Please summarise this"}, LOW),
        (HIGH, {}, {"text": "Write a REPORT on", "input_tokens": 1, "output_tokens": 1}, LOW),
        (HIGH, {}, {"text": "an analysis of"}, LOW),
        (HIGH, {}, {"text": "the reporter, summer and analog"}, HIGH),
        # Real time only where the policy allows it.
        (NORMAL, {"allow_real_time": True}, {"real_time": True, "text": "a summary"}, CRITICAL),
        (NORMAL, {}, {"real_time": True}, NORMAL),
        # An explicit class is not moved.
        (LOW, {"class": "low"}, {"input_tokens": 1, "output_tokens": 1}, LOW),
        (HIGH, {"class": "high"}, {"text": "a summary"}, HIGH),
        (LOW, {"class": "low", "allow_real_time": True}, {"real_time": True}, LOW),
    ],
)
def test_rules_move_within_the_policy(
    base: PriorityClass, fields: dict[str, Any], request_: dict[str, Any], expected: PriorityClass
) -> None:
    given = {"input_tokens": None, "output_tokens": None, "text": None, "real_time": False} | request_
    assert class_by_rules(base, policy(**fields), ClassRules(), **given) is expected


def test_without_an_agent_the_rules_alone_class() -> None:
    def classed(**given: Any) -> PriorityClass:
        base = {"input_tokens": None, "output_tokens": None, "text": None, "real_time": False}
        return class_by_rules(NORMAL, None, ClassRules(), **(base | given))

    assert classed(input_tokens=10, output_tokens=10) is HIGH
    assert classed(text="report") is LOW
    assert classed(real_time=True) is NORMAL
    assert classed() is NORMAL


# --- memory ---


def cache(in_flight: int = 0, **fields: Any) -> CacheReport:
    """1,600 tokens, half of them used."""
    state = WorkerState(**{"kv_blocks_total": 100, "kv_block_tokens": 16, "kv_cache_usage": 0.5} | fields)
    found = CacheReport.of(state, in_flight)
    assert found is not None
    return found


def test_the_water_mark_is_85_percent() -> None:
    assert cache().room(WATER_MARK, 0, 0) == 0.35 * 1_600
    assert cache(kv_cache_usage=0.9).room(WATER_MARK, 0, 0) < 0
    assert CacheReport.of(WorkerState(kv_blocks_total=100, kv_block_tokens=16), 0) is None
    assert CacheReport.of(WorkerState(kv_cache_usage=0.1), 0) is None


def test_prompts_that_wait_in_the_engine_will_need_memory() -> None:
    assert cache(waiting_requests=2, waiting_tokens=200).room(WATER_MARK, 0, 0) == 0.35 * 1_600 - 200


@pytest.mark.parametrize(
    ("fields", "in_flight", "counted", "at_end"),
    [
        # Four requests of 100 + 150, each with 100 tokens of its answer: 1,000 at their end, not 800 + 600.
        ({"running_requests": 4, "waiting_tokens": 0}, 4, (400, 600, 0), 1_000),
        # A prefix of 700 that all share: 800 are used, and no more than the answers are to come.
        ({"running_requests": 4, "waiting_tokens": 0}, 4, (2_900, 600, 0), 800 + 600),
        # The engine does not say what is still to be read: for one of four that may be all of its prompt.
        ({"running_requests": 4}, 4, (2_900, 600, 0), 800 + 725 + 600),
        # Nor of whoever waits there, whose prompt is nowhere yet.
        ({"running_requests": 3, "waiting_requests": 1}, 4, (2_900, 600, 0), 800 + 2 * 725 + 600),
        ({"running_requests": 3, "waiting_requests": 1, "waiting_tokens": 60}, 4, (2_900, 600, 0), 860 + 600),
        # Two of four came past us: half of what is used is theirs.
        ({"running_requests": 4}, 2, (200, 300, 0), 400 + 500),
        # Half of ours are not there yet: their prompts and all answers come on top of what is used.
        ({"running_requests": 2, "waiting_tokens": 0}, 4, (1_600, 600, 0), 800 + 800 + 600),
        # What was sent since the beat counts whole, and not twice.
        ({}, 0, (300, 100, 300), 800 + 300 + 100),
    ],
)
def test_what_requests_will_still_write_is_foreseen(
    fields: dict[str, Any], in_flight: int, counted: tuple[int, int, int], at_end: int
) -> None:
    found = cache(in_flight, **fields)
    assert found.at_end(*counted) == at_end
    prompts, answers, sent = counted
    # 90 % at the end of all requests; 85 % now, with what was sent since the beat.
    assert found.room(WATER_MARK, prompts, answers, (sent, 0)) == min(1_440 - at_end, 1_360 - 800 - sent)


def test_a_water_mark_above_the_mark_for_the_end_moves_that_too() -> None:
    # 1,000 at the end of the four requests, of 1,600.
    assert cache(4, running_requests=4).room(0.95, 400, 600) == 1_520 - 1_000


def test_a_prompt_longer_than_it_was_taken_to_be_makes_no_room() -> None:
    # 110 tokens in prompts and 20 in answers, says the estimate: 800 are used.
    assert cache(2, running_requests=2).room(WATER_MARK, 110, 20, (10, 10)) == 1_360 - 800 - 20


# --- verdicts ---

IN_TIME = {"left_s": 10.0, "what": "the family 'qwen'", "degraded": False}


@pytest.mark.parametrize(
    ("refusal", "fields", "expected"),
    [
        (Refusal.SLOTS, {}, Hold(10.0)),
        (Refusal.SLOTS, {"fallback_strategy": "reject"}, Hold(10.0)),
        (Refusal.SLOTS, {"fallback_strategy": "round_robin"}, TakeTurns()),
        (Refusal.EXPRESS, {}, Hold(10.0)),
        (
            Refusal.EXPRESS,
            {"fallback_strategy": "queue_and_retry", "retry_max": 3, "retry_delay_ms": 200},
            Hold(0.6, "queue_and_retry"),
        ),
        (Refusal.SLOTS, {"fallback_strategy": "degrade_to_phi"}, Degrade("phi")),
        (Refusal.NO_WORKER, {"fallback_strategy": "degrade_to_phi"}, Degrade("phi")),
        (
            Refusal.NO_WORKER,
            {"fallback_strategy": "queue_and_retry", "retry_max": 3, "retry_delay_ms": 200},
            Hold(0.6, "queue_and_retry"),
        ),
        (
            Refusal.VRAM,
            {"fallback_strategy": "queue_and_retry", "retry_max": 100, "retry_delay_ms": 200},
            Hold(10.0, "queue_and_retry"),
        ),
        (Refusal.MEMORY, {"on_memory_pressure": "hold"}, Hold(10.0)),
    ],
)
def test_what_a_policy_says_to_a_refusal(refusal: Refusal, fields: dict[str, Any], expected: Verdict) -> None:
    assert verdict(refusal, policy(**fields), **IN_TIME) == expected


@pytest.mark.parametrize(
    ("refusal", "fields", "status", "code"),
    [
        (Refusal.MEMORY, {}, 429, "kv_memory"),
        (Refusal.MEMORY, {"fallback_strategy": "queue_and_retry", "retry_max": 9}, 429, "kv_memory"),
        (Refusal.SLOTS, {"fallback_strategy": "drop"}, 429, "dropped"),
        (Refusal.NO_WORKER, {"fallback_strategy": "drop"}, 429, "dropped"),
        (Refusal.NO_WORKER, {"fallback_strategy": "reject"}, 503, "no_worker"),
        (Refusal.VRAM, {"fallback_strategy": "round_robin"}, 503, "no_vram"),
    ],
)
def test_refusals_that_end_a_request(refusal: Refusal, fields: dict[str, Any], status: int, code: str) -> None:
    said = verdict(refusal, policy(**fields), **IN_TIME)
    assert isinstance(said, ApiProblem)
    assert (said.status, said.code) == (status, code)
    assert said.retry_after_s is not None


def test_a_family_is_degraded_once() -> None:
    said = verdict(Refusal.NO_WORKER, policy(fallback_strategy="degrade_to_phi"), **(IN_TIME | {"degraded": True}))
    assert isinstance(said, ApiProblem)
    assert said.status == 503


def test_without_an_agent_full_workers_are_waited_for() -> None:
    assert verdict(Refusal.SLOTS, None, **IN_TIME) == Hold(10.0)


# --- the queue ---


def held(name: str, priority_class: PriorityClass = NORMAL, *, agent: str = "a", since: float = 0.0) -> Held[str]:
    return Held(name, agent, priority_class, since, since + 60.0)


def order(queue: HoldQueue[str], now: float = 0.0) -> list[str]:
    """Serve everything, one at a time."""
    names = []
    while len(queue):
        first = next(queue.heads(now))
        queue.served(first)
        queue.remove(first)
        names.append(first.item)
    return names


def filled(*entries: Held[str], capacity: int = 100) -> HoldQueue[str]:
    queue: HoldQueue[str] = HoldQueue(capacity)
    for entry in entries:
        assert queue.push(entry) is None
    return queue


def test_higher_classes_overtake_and_a_lane_is_in_order() -> None:
    queue = filled(
        held("low-1", LOW),
        held("normal-1"),
        held("high-1", HIGH, since=1),
        held("normal-2", since=1),
        held("high-2", HIGH, since=2),
        held("critical", CRITICAL, since=3),
    )
    assert order(queue, 3.0) == ["critical", "high-1", "high-2", "normal-1", "normal-2", "low-1"]


def test_agents_of_one_class_share() -> None:
    queue = filled(*(held(f"a{n}") for n in range(3)), held("b0", agent="b", since=1), held("b1", agent="b", since=1))
    assert order(queue, 1.0) == ["a0", "b0", "a1", "b1", "a2"]


def test_waiting_makes_more_urgent_but_never_critical() -> None:
    assert aged_class(LOW, AGEING_S * 0.99, AGEING_S) is LOW
    assert aged_class(LOW, AGEING_S, AGEING_S) is NORMAL
    assert aged_class(LOW, 2 * AGEING_S, AGEING_S) is HIGH
    assert aged_class(LOW, 100 * AGEING_S, AGEING_S) is HIGH
    assert aged_class(CRITICAL, 0, AGEING_S) is CRITICAL
    queue = filled(held("old-low", LOW), held("new-high", HIGH, agent="b", since=2 * AGEING_S))
    assert order(queue, 2 * AGEING_S) == ["old-low", "new-high"]


def test_a_full_queue_sheds_the_youngest_of_the_lowest_class() -> None:
    queue = filled(held("low-1", LOW), held("low-2", LOW, since=1), held("normal"), capacity=3)
    out = queue.push(held("high", HIGH, since=2))
    assert out is not None
    assert out.item == "low-2"
    assert len(queue) == 3
    newcomer = held("low-3", LOW, since=3)
    assert queue.push(newcomer) is newcomer
    assert order(queue, 3.0) == ["high", "normal", "low-1"]


def test_what_left_is_gone_and_time_ends() -> None:
    first, second = held("first"), held("second", since=5)
    queue = filled(first, second)
    assert queue.remove(first)
    assert not queue.remove(first)
    # The first one's time may still be named: then nothing is found, and the next is.
    assert queue.next_expiry() in (60.0, 65.0)
    assert queue.expired(60.0) == []
    assert queue.next_expiry() == 65.0
    assert queue.expired(64.9) == []
    assert [each.item for each in queue.expired(65.0)] == ["second"]
    assert (len(queue), queue.next_expiry(), list(queue.heads(70))) == (0, None, [])


def test_depth_by_class() -> None:
    queue = filled(held("1", LOW), held("2", LOW, agent="b"), held("3", HIGH))
    assert queue.depth() == {"low": 2, "normal": 0, "high": 1, "critical": 0}


@given(
    st.lists(
        st.tuples(st.sampled_from(list(PriorityClass)), st.sampled_from("abc"), st.booleans()), min_size=1, max_size=60
    ),
    st.integers(1, 20),
)
def test_nothing_is_lost_and_no_lower_class_goes_first(
    arrivals: list[tuple[PriorityClass, str, bool]], capacity: int
) -> None:
    queue: HoldQueue[str] = HoldQueue(capacity)
    inside: dict[str, Held[str]] = {}
    for number, (priority_class, agent, leaves) in enumerate(arrivals):
        entry = held(str(number), priority_class, agent=agent)
        out = queue.push(entry)
        if out is not entry:
            inside[entry.item] = entry
        if out is not None and out is not entry:
            assert inside.pop(out.item).priority_class < priority_class
        if leaves and inside:
            gone = inside.pop(min(inside))
            assert queue.remove(gone)
        assert len(queue) == len(inside) <= capacity
    classes = {name: entry.priority_class for name, entry in inside.items()}
    served = order(queue)
    assert sorted(served) == sorted(classes)
    ranks = [classes[name] for name in served]
    assert ranks == sorted(ranks, reverse=True)
