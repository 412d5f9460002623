"""The load to be planned for: agents with rates, or a trace."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, log, sqrt
from pathlib import Path
from typing import Final

from recursant.agents.policy import AgentPolicy
from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.folder import read_trace
from recursant.sim.workloads.labels import always, by_length
from recursant.sim.workloads.timing import at_rate
from recursant.sim.workloads.trace_file import TraceError

# Lengths around a given mean: lognormal, with a standard deviation as large as the mean. Azure's conversations have
# 0.8 to 1.3 times.
LENGTH_VARIATION: Final = 1.0
# No request is longer than this many times the mean.
LONGEST: Final = 8.0
# In place of an agent's name: agents by the length of their requests.
BY_LENGTH: Final = "by-length"
FIELDS: Final = ("agent", "rate", "prompt", "output", "sla_ms", "family")


@dataclass(frozen=True, slots=True)
class AgentRate:
    """What one agent sends.

    Attributes:
        agent_id: its name.
        rate: requests a second.
        prompt, output: mean tokens.
        sla_ms: target for the first token; None: its policy's.
        family: of models that it needs; None: its policy's, or any.
    """

    agent_id: str
    rate: float
    prompt: float
    output: float
    sla_ms: float | None = None
    family: str | None = None

    def faster(self, factor: float) -> "AgentRate":
        """The same at `factor` times the rate.

        Raises:
            ValueError: `factor` is not above 0.
        """
        if not 0 < factor < inf:
            raise ValueError(f"the factor of a rate must be above 0, not {factor:g}")
        return replace(self, rate=self.rate * factor)


def parse_rate(text: str) -> AgentRate:
    """An agent from `agent=chat-web,rate=5,prompt=1000,output=150,sla_ms=800,family=qwen`; the last two are optional.

    Raises:
        ValueError: the text is not of this form; the message names the field and what is allowed.
    """
    given: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals or name not in FIELDS or not value:
            raise ValueError(f"{text!r}: {item.strip()!r} is not FIELD=VALUE with a field of {', '.join(FIELDS)}")
        if name in given:
            raise ValueError(f"{text!r}: {name} is given twice")
        given[name] = value
    missing = [name for name in FIELDS[:4] if name not in given]
    if missing:
        raise ValueError(f"{text!r}: {', '.join(missing)} missing")
    numbers: dict[str, float] = {}
    for name in ("rate", "prompt", "output", "sla_ms"):
        if name in given:
            try:
                numbers[name] = float(given[name])
            except ValueError:
                numbers[name] = -1.0
            least = 1 if name in ("prompt", "output") else 0
            if not least <= numbers[name] < 1e9 or numbers[name] == 0:
                what = "a number of at least 1" if least else "a number above 0"
                raise ValueError(f"{text!r}: {name} must be {what}, not {given[name]!r}")
    return AgentRate(
        given["agent"],
        numbers["rate"],
        numbers["prompt"],
        numbers["output"],
        numbers.get("sla_ms"),
        given.get("family"),
    )


def arrivals_of(rates: Sequence[AgentRate], seconds: float, seed: int = 0) -> list[Arrival]:
    """Requests of these agents for `seconds`, by time, lengths lognormal around their means.

    As many as the rates say, at times drawn evenly: a Poisson process whose count is known.
    """
    found: list[Arrival] = []
    for one in rates:
        draw = random.Random(f"{seed}-{one.agent_id}")
        times = sorted(draw.random() * seconds for _ in range(max(1, round(one.rate * seconds))))
        for at in times:
            prompt, output = _length(draw, one.prompt), _length(draw, one.output)
            found.append(Arrival(at, one.agent_id, prompt, output, latency_sla_ms=one.sla_ms))
    return sorted(found, key=lambda arrival: arrival.at_s)


def _length(draw: random.Random, mean: float) -> int:
    # Of a lognormal distribution: sigma^2 = ln(1 + variation^2), mu = ln(mean) - sigma^2 / 2.
    variance = log(1 + LENGTH_VARIATION**2)
    drawn = draw.lognormvariate(log(mean) - variance / 2, sqrt(variance))
    return max(1, round(min(drawn, LONGEST * mean)))


def busiest(arrivals: Sequence[Arrival], seconds: float) -> list[Arrival]:
    """The window of `seconds` that brings the most tokens, moved to 0 s: fleets are sized for it."""
    best = begins = first = tokens = 0
    most = -1
    for index, arrival in enumerate(arrivals):
        tokens += arrival.prompt_tokens + arrival.output_tokens
        while arrivals[first].at_s <= arrival.at_s - seconds:
            tokens -= arrivals[first].prompt_tokens + arrivals[first].output_tokens
            first += 1
        if tokens > most:
            most, begins, best = tokens, first, index
    window = arrivals[begins : best + 1]
    return [replace(arrival, at_s=arrival.at_s - window[0].at_s) for arrival in window]


def trace_load(path: Path, agent: str, factor: float, seconds: float, seed: int = 0) -> list[Arrival]:
    """The busiest `seconds` of a trace file at `factor` times its rate, as one agent's or by length (`BY_LENGTH`).

    Raises:
        ValueError: the file cannot be used, holds no request, or the factor is not above 0.
    """
    label = by_length() if agent == BY_LENGTH else always(agent)
    arrivals = list(at_rate(read_trace(path, label, seed=seed), factor))
    if not arrivals:
        raise TraceError(path, None, "no requests in it")
    return busiest(arrivals, seconds)


@dataclass(frozen=True)
class Group:
    """Agents that share workers: those of one family.

    Attributes:
        family: that they need; None: any.
        policies: of its agents.
        arrivals: their requests, by time.
        seconds: that these stand for.
    """

    family: str | None
    policies: tuple[AgentPolicy, ...]
    arrivals: tuple[Arrival, ...]
    seconds: float

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.arrivals) / self.seconds

    def target_ms(self, arrival: Arrival) -> float | None:
        """The target for a request's first token."""
        if arrival.latency_sla_ms is not None:
            return arrival.latency_sla_ms
        return next((one.latency_sla_ms for one in self.policies if one.agent_id == arrival.agent_id), None)

    @property
    def tightest_ms(self) -> float | None:
        """The smallest target of its agents."""
        targets = [target for target in {self.target_ms(arrival) for arrival in self.arrivals} if target is not None]
        return min(targets, default=None)


def grouped(
    arrivals: Sequence[Arrival],
    seconds: float,
    known: Iterable[AgentPolicy] = (),
    rates: Sequence[AgentRate] = (),
    default_sla_ms: int | None = None,
) -> list[Group]:
    """A load as groups of agents by family, in the order of the agents' names.

    Args:
        arrivals: of all agents.
        seconds: that they stand for.
        known: policies; an agent without one gets one that holds requests back for a while.
        rates: what was said of agents beyond that.
        default_sla_ms: target for the first token, where neither says one.
    """
    policies = {policy.agent_id: policy for policy in known}
    said = {one.agent_id: one for one in rates}
    families: dict[str | None, list[AgentPolicy]] = {}
    for agent_id in sorted({arrival.agent_id for arrival in arrivals}):
        policy = policies.get(agent_id) or AgentPolicy(
            agent_id=agent_id, fallback_strategy="queue_and_retry", retry_max=50
        )
        one = said.get(agent_id)
        sla = one.sla_ms if one is not None and one.sla_ms is not None else policy.latency_sla_ms or default_sla_ms
        family = one.family if one is not None and one.family is not None else policy.model_family
        policy = policy.model_copy(
            update={"model_family": family, "model": None, "latency_sla_ms": None if sla is None else round(sla) or 1}
        )
        families.setdefault(family, []).append(policy)
    groups = []
    for family, members in families.items():
        names = {policy.agent_id for policy in members}
        own = tuple(arrival for arrival in arrivals if arrival.agent_id in names)
        groups.append(Group(family, tuple(members), own, seconds))
    return groups
