"""A fleet on trial: the load through the fleet simulation, with the routing that runs in production."""

from dataclasses import dataclass

from recursant.config.model import Config
from recursant.sim.engine_profile import EngineProfile
from recursant.sim.fleet.policies.recursant import RecursantPolicy
from recursant.sim.fleet.request import Ending, Request
from recursant.sim.fleet.simulation import Simulation
from recursant.sim.fleet.spec import Environment, WorkerSpec
from recursant.sizing.load import Group

# A family's name in the simulation where agents need none in particular.
_ANY = "any"


@dataclass(frozen=True, slots=True)
class AgentResult:
    """How one agent fared.

    Attributes:
        agent_id: which.
        requests: that it sent, those too long for the model included.
        target_ms: for the first token; None: none.
        p50_ms, p99_ms: of the first token, over requests that got one.
        in_time: share of its requests that were served, and within the target where there is one.
        shed: share that was refused, found nobody in time or is too long for the model.
    """

    agent_id: str
    requests: int
    target_ms: float | None
    p50_ms: float
    p99_ms: float
    in_time: float
    shed: float


@dataclass(frozen=True, slots=True)
class Trial:
    """How a fleet did.

    Attributes:
        workers: how many.
        agents: by name.
        busy: share of the time until the last answer that workers computed, in the mean.
        peak_kv_usage: the fullest KV cache at any beat.
        preemptions: sequences that lost their KV cache to others.
    """

    workers: int
    agents: tuple[AgentResult, ...]
    busy: float
    peak_kv_usage: float
    preemptions: int

    def meets(self, goal: float) -> bool:
        """Did every agent have at least this share of its requests in time?"""
        return all(agent.in_time >= goal for agent in self.agents)


def trial(group: Group, profile: EngineProfile, workers: int, *, seed: int = 0) -> Trial:
    """Simulate `workers` workers of one kind under a group's load.

    Requests longer than the profile's context reach no worker and count as not served.
    """
    fits = [one for one in group.arrivals if one.prompt_tokens + one.output_tokens <= profile.max_model_len]
    family = group.family or _ANY
    policies = tuple(policy.model_copy(update={"model_family": family}) for policy in group.policies)
    spec = WorkerSpec(profile, models=((profile.name, family),))
    policy = RecursantPolicy(Config(agents=policies))
    run = Simulation([spec] * workers, policy, Environment(seed=seed)).run(fits)
    by_agent: dict[str, list[Request]] = {one.agent_id: [] for one in group.policies}
    for request in run.requests:
        by_agent[request.arrival.agent_id].append(request)
    sent = {agent_id: sum(1 for one in group.arrivals if one.agent_id == agent_id) for agent_id in by_agent}
    agents = tuple(_result(group, agent_id, requests, sent[agent_id]) for agent_id, requests in by_agent.items())
    busy = sum(worker.busy_s for worker in run.workers) / (workers * run.seconds) if run.requests else 0.0
    return Trial(
        workers=workers,
        agents=agents,
        busy=busy,
        peak_kv_usage=max(worker.peak_kv_usage for worker in run.workers),
        preemptions=sum(worker.preemptions for worker in run.workers),
    )


def _result(group: Group, agent_id: str, requests: list[Request], sent: int) -> AgentResult:
    times = sorted(request.first_token_ms for request in requests if request.first_token_ms is not None)
    in_time = 0
    for request in requests:
        target = group.target_ms(request.arrival)
        reached = request.first_token_ms
        if request.ending is Ending.SERVED and reached is not None and (target is None or reached <= target):
            in_time += 1
    shed = sum(1 for request in requests if request.ending in (Ending.SHED, Ending.UNSERVED)) + sent - len(requests)
    targets = {group.target_ms(request.arrival) for request in requests}
    return AgentResult(
        agent_id,
        sent,
        min((target for target in targets if target is not None), default=None),
        percentile(times, 0.5),
        percentile(times, 0.99),
        in_time / sent,
        shed / sent,
    )


def percentile(ordered: list[float], part: float) -> float:
    """The smallest value that at least this part of the values does not exceed; NaN where there are none."""
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, max(0, -(-round(part * 1e6) * len(ordered) // 1_000_000) - 1))]
