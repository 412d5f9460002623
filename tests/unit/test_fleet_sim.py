"""The fleet simulation: against sums done by hand, and what must hold whatever happens."""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from recursant.agents.policy import AgentPolicy
from recursant.config.model import Config
from recursant.sim.fleet.events import Events
from recursant.sim.fleet.policies.ablations import (
    ablations,
    affinity_ablations,
    with_affinity,
    with_weights,
    without_express,
)
from recursant.sim.fleet.policies.endpoint_picker import EndpointPickerPolicy
from recursant.sim.fleet.policies.oracle import OraclePolicy
from recursant.sim.fleet.policies.plain import PLAIN_POLICIES, PlainPolicy
from recursant.sim.fleet.policies.recursant import RecursantPolicy
from recursant.sim.fleet.request import Ending
from recursant.sim.fleet.router import Policy
from recursant.sim.fleet.simulation import Run, Simulation
from recursant.sim.fleet.spec import Environment, Fault, FaultKind, OnExhaustion, WorkerSpec
from recursant.sim.profiles import TINY
from recursant.sim.workloads.arrival import Arrival

PROFILE = replace(TINY, jitter=0.0)
SPEC = WorkerSpec(PROFILE, models=(("qwen-7b", "qwen"),))
FAMILIES = {"chat": "qwen", "batch": "qwen"}
CONFIG = Config(
    agents=(
        AgentPolicy(
            agent_id="chat",
            model_family="qwen",
            priority=10,
            latency_sla_ms=500,
            fallback_strategy="queue_and_retry",
            retry_max=20,
            retry_delay_ms=200,
        ),
        AgentPolicy(agent_id="batch", model_family="qwen", priority=1, max_new_tokens=256),
    )
)
QUIET = Environment(replicas=1, delay_s=0.0, delay_spread_s=0.0, bytes_per_token=4.0, bytes_spread=0.0)
POLICIES: list[Policy] = [
    *(PlainPolicy(name, FAMILIES) for name in PLAIN_POLICIES),
    EndpointPickerPolicy(FAMILIES),
    OraclePolicy(FAMILIES),
    RecursantPolicy(CONFIG),
    *ablations(CONFIG),
    *affinity_ablations(CONFIG),
    without_express(CONFIG),
]


def load(rate: float, count: int, seed: int = 1, output: int = 60) -> Iterator[Arrival]:
    draw = random.Random(seed)
    at = 0.0
    for number in range(count):
        at += draw.expovariate(rate)
        agent = "chat" if draw.random() < 0.7 else "batch"
        length = int(draw.lognormvariate(5.5, 1.0)) + 1
        yield Arrival(
            at, agent, length, 1 + int(draw.random() * output), f"s{number % 40}", tuple(range(length // 512))
        )


def simulate(policy: Policy, environment: Environment, count: int = 400, workers: int = 4, rate: float = 150.0) -> Run:
    return Simulation([SPEC] * workers, policy, environment).run(load(rate, count))


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_one_request_on_one_worker_takes_what_the_formula_says(policy: Policy) -> None:
    run = Simulation([SPEC], policy, QUIET).run([Arrival(1.0, "chat", 1_000, 3)])
    [request] = run.requests
    prefill = PROFILE.token_time(1_000) + PROFILE.sequence_time_s
    assert request.first_token_s == pytest.approx(1.0 + prefill)
    # Two more tokens, each one decode step that reads the cache of what is there.
    reads = (1_001 + 1_002) * PROFILE.kv_read_s_per_token
    decode = 2 * (PROFILE.token_time(1) + PROFILE.sequence_time_s) + reads
    assert request.ended_s == pytest.approx(1.0 + prefill + decode)
    assert request.ending is Ending.SERVED
    assert run.workers[0].busy_s == pytest.approx(prefill + decode)
    assert run.workers[0].tokens == 3


def test_round_robin_gives_everybody_the_same_number() -> None:
    run = simulate(PlainPolicy("round robin", FAMILIES), QUIET)
    assert Counter(request.worker for request in run.requests) == dict.fromkeys(range(4), 100)


def test_the_weighted_policy_follows_declared_capacity() -> None:
    specs = [replace(SPEC, capacity_tokens=capacity) for capacity in (10_000, 30_000)]
    run = Simulation(specs, PlainPolicy("weighted by capacity", FAMILIES), QUIET).run(load(100.0, 400))
    assert Counter(request.worker for request in run.requests) == {0: 100, 1: 300}


def test_a_session_stays_where_it_was() -> None:
    run = simulate(PlainPolicy("session hash", FAMILIES), QUIET)
    where = {(request.arrival.session_id, request.worker) for request in run.requests}
    assert len(where) == 40


def test_our_gateways_keep_sessions_together_and_tell_each_other() -> None:
    """Most turns find the worker of the one before, though requests go to the gateways in turn."""

    def kept(affinity: float) -> float:
        config = with_weights(CONFIG, profile="adaptive", affinity=affinity)
        run = simulate(RecursantPolicy(config), Environment(replicas=2, seed=3), rate=10.0)
        # A session belongs to its agent.
        last: dict[tuple[str, str], int | None] = {}
        same: list[bool] = []
        for request in run.requests:
            session = (request.arrival.agent_id, request.arrival.session_id)
            if session in last:
                same.append(last[session] == request.worker)
            last[session] = request.worker
        return sum(same) / len(same)

    assert kept(0.0) < 0.4
    assert kept(1.0) > 0.9


def test_a_prompt_leads_back_by_the_blocks_of_the_workload() -> None:
    arrivals = [Arrival(1.0 + number, "chat", 2_048, 2, "", tuple(range(4))) for number in range(20)]
    config = with_affinity(with_weights(CONFIG, profile="adaptive"), "prefix")
    run = Simulation([SPEC] * 4, RecursantPolicy(config), QUIET).run(arrivals)
    assert len({request.worker for request in run.requests}) == 1
    alone = Simulation([SPEC] * 4, RecursantPolicy(with_weights(CONFIG, profile="adaptive")), QUIET).run(arrivals)
    assert len({request.worker for request in alone.requests}) == 4


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_every_request_ends_once_and_nothing_stays_counted(policy: Policy) -> None:
    faults = (
        Fault(FaultKind.KILL, worker=0, at_s=0.8, seconds=0.5),
        Fault(FaultKind.RESETS, worker=1, at_s=0.2, seconds=1.0, share=0.3),
        Fault(FaultKind.CUDA_ERRORS, worker=2, at_s=1.0, share=0.5),
        Fault(FaultKind.SLOW, worker=3, at_s=0.5, seconds=0.5, factor=3.0),
        Fault(FaultKind.LEAK, worker=3, at_s=0.0, share=0.1),
    )
    run = simulate(policy, Environment(faults=faults, seed=3))
    assert [request.number for request in run.requests] == list(range(400))
    assert all(request.ending is not None and request.ended_s is not None for request in run.requests)
    assert run.in_flight_left == 0
    served = [request for request in run.requests if request.ending is Ending.SERVED]
    assert sum(worker.finished for worker in run.workers) == len(served)
    assert len(served) > 250
    assert all(not worker.engine.has_work for worker in run.workers)


@pytest.mark.parametrize(
    "policy", [PlainPolicy("random", FAMILIES), EndpointPickerPolicy(FAMILIES), RecursantPolicy(CONFIG)], ids=str
)
def test_the_same_seed_gives_the_same_numbers(policy: Policy) -> None:
    def numbers(seed: int) -> list[object]:
        run = simulate(policy, Environment(seed=seed, faults=(Fault(FaultKind.RESETS, share=0.05),)))
        return [(r.worker, r.first_token_s, r.ended_s, r.ending) for r in run.requests]

    assert numbers(1) == numbers(1)
    assert numbers(1) != numbers(2)


def test_a_worker_that_is_killed_breaks_answers_and_sends_the_rest_elsewhere() -> None:
    faults = (Fault(FaultKind.KILL, worker=0, at_s=1.0, seconds=None),)
    run = simulate(RecursantPolicy(CONFIG), replace(QUIET, faults=faults))
    broken = [request for request in run.requests if request.ending is Ending.BROKEN]
    # Only who had begun to answer is lost: there is no second try for that.
    assert broken
    assert all(request.first_token_s is not None and request.first_token_s <= 1.0 for request in broken)
    late = [request for request in run.requests if request.arrival.at_s > 1.0]
    assert late
    assert {request.ending for request in late} == {Ending.SERVED}
    assert all(request.worker != 0 for request in late)


def test_a_worker_with_cuda_errors_is_isolated() -> None:
    faults = (Fault(FaultKind.CUDA_ERRORS, worker=2, share=1.0),)
    run = simulate(RecursantPolicy(CONFIG), replace(QUIET, faults=faults))
    # Three in a row take it out (SPEC F1); what was sent before the third answer may meet it, too.
    assert 3 <= run.workers[2].cuda_errors <= 5
    # Whoever met it was answered by another one.
    assert {request.ending for request in run.requests} == {Ending.SERVED}
    assert all(request.worker != 2 for request in run.requests)


@pytest.mark.parametrize("kind", [FaultKind.SERVER_ERRORS, FaultKind.CUDA_ERRORS])
def test_a_request_that_every_worker_fails_meets_two_of_them(kind: FaultKind) -> None:
    faults = (Fault(kind, share=1.0),)
    run = Simulation([SPEC] * 4, RecursantPolicy(CONFIG), replace(QUIET, faults=faults)).run(load(1.0, 3))
    assert [(request.ending, request.attempts) for request in run.requests] == [(Ending.FAILED, 2)] * 3
    assert sum(worker.cuda_errors + worker.failures for worker in run.workers) == 6
    assert run.in_flight_left == 0


def test_a_mesh_does_not_send_a_500_again() -> None:
    run = simulate(
        PlainPolicy("round robin", FAMILIES), replace(QUIET, faults=(Fault(FaultKind.SERVER_ERRORS, share=1.0),))
    )
    assert {(request.ending, request.attempts) for request in run.requests} == {(Ending.FAILED, 1)}


def test_an_engine_that_cannot_preempt_fails_whom_it_has_no_memory_for() -> None:
    small = replace(PROFILE, kv_blocks=64, max_model_len=1_024)
    spec = replace(SPEC, profile=small, on_exhaustion=OnExhaustion.FAIL)
    together = [Arrival(0.0, "chat", 400, 200) for _ in range(2)]
    run = Simulation([spec], PlainPolicy("random", FAMILIES), QUIET).run(together)
    # 2 x 600 tokens do not fit into 1,024: the second one loses.
    assert [request.ending for request in run.requests] == [Ending.SERVED, Ending.OUT_OF_MEMORY]
    assert run.workers[0].out_of_memory == 1


def test_the_water_mark_prevents_that() -> None:
    small = replace(PROFILE, kv_blocks=64, max_model_len=1_024)
    spec = replace(SPEC, profile=small, on_exhaustion=OnExhaustion.FAIL)
    together = [Arrival(0.0, "batch", 400, 200) for _ in range(2)]
    run = Simulation([spec], RecursantPolicy(CONFIG), QUIET).run(together)
    # 85 % of 1,024 take one of 400 + 256, not two (SPEC E2).
    assert [request.ending for request in run.requests] == [Ending.SERVED, Ending.SHED]


def test_news_that_is_under_way_does_not_keep_a_simulation_going() -> None:
    environment = replace(QUIET, delay_s=0.5)
    run = simulate(RecursantPolicy(CONFIG), environment, count=20, workers=16)
    assert run.in_flight_left == 0
    assert run.seconds == max(request.ended_s or 0.0 for request in run.requests)


def test_events_of_one_moment_keep_their_order_and_regular_ones_end_with_the_rest() -> None:
    events = Events()
    seen: list[str] = []
    events.every(1.0, 1.0, lambda: seen.append("beat"))
    events.at(2.0, seen.append, "first")
    events.at(2.0, seen.append, "second")
    events.run()
    # The beat at 2.0 was asked for last.
    assert seen == ["beat", "first", "second"]
    assert events.now == 2.0
