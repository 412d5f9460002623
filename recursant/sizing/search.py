"""The smallest fleet of each kind that meets its targets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from recursant.sim.engine_profile import EngineProfile
from recursant.sizing.check import Trial, trial
from recursant.sizing.estimate import (
    MOST_LOAD,
    UTILISATION_BOUND,
    Mix,
    least_computed,
    most_requests_s,
    unloaded_first_token_s,
    workers_at,
)
from recursant.sizing.load import Group
from recursant.sizing.settings import EngineSettings, fitting_settings

# Share of each agent's requests that must be served in time.
DEFAULT_GOAL: Final = 0.99
DEFAULT_MOST_WORKERS: Final = 64


@dataclass(frozen=True, slots=True)
class Choice:
    """One kind of worker for a group.

    Attributes:
        profile: the kind.
        settings: for its engine; None: the kind cannot take the load at all.
        most_requests_s: what one worker takes in the steady state, at the very most; estimated.
        estimated: workers by formula; None: no number.
        workers: the smallest number that met the targets in the simulation, the estimate where nothing was simulated;
            None: no number did.
        result: the simulation of that number, of the largest one tried where none did; None: nothing was simulated.
        why_not: why `workers` is None.
    """

    profile: EngineProfile
    settings: EngineSettings | None
    most_requests_s: float
    estimated: int | None
    workers: int | None
    result: Trial | None
    why_not: str = ""

    @property
    def devices(self) -> int | None:
        """Devices of all workers together."""
        return None if self.workers is None else self.workers * self.profile.devices


def smallest(meets: Callable[[int], bool], start: int, most: int, least: int = 1) -> int | None:
    """The smallest number from `least` to `most` that meets, looked for from `start`; None: `most` does not.

    More workers are taken to be never worse.
    """
    if least > most:
        return None
    low, high = least - 1, min(max(least, start), most)
    while not meets(high):
        if high == most:
            return None
        low, high = high, min(most, max(high + 1, high + high // 2))
    step = 1
    # Down in growing steps, as the estimate is near.
    while high - step > low and meets(high - step):
        high -= step
        step *= 2
    low = max(low, high - step)
    while high - low > 1:
        middle = (low + high) // 2
        if meets(middle):
            high = middle
        else:
            low = middle
    return high


def plan_kind(
    group: Group,
    profile: EngineProfile,
    *,
    goal: float = DEFAULT_GOAL,
    most_workers: int = DEFAULT_MOST_WORKERS,
    simulate: bool = True,
    seed: int = 0,
) -> Choice:
    """How many workers of one kind a group needs."""
    fits = [one for one in group.arrivals if one.prompt_tokens + one.output_tokens <= profile.max_model_len]
    too_long = 1 - len(fits) / len(group.arrivals)
    if not fits or too_long > 1 - goal:
        why = f"{too_long:.0%} of the requests are longer than its {profile.max_model_len:,} tokens"
        return Choice(profile, None, 0.0, None, None, None, why)
    settings = fitting_settings(profile, fits, group.tightest_ms)
    tuned = settings.applied_to(profile)
    most = most_requests_s(tuned, Mix.of(fits))
    estimated = workers_at(UTILISATION_BOUND, group.rate, most)
    fewest = workers_at(MOST_LOAD, group.rate, most)
    slow = _too_slow(group, tuned, goal)
    if slow or estimated is None or fewest is None:
        return Choice(profile, settings, most, estimated, None, None, slow or "one worker can take none of this load")
    if not simulate:
        enough = estimated <= most_workers
        why = "" if enough else f"more than {most_workers} workers"
        return Choice(profile, settings, most, estimated, estimated if enough else None, None, why)
    if fewest > most_workers:
        why = f"{most_workers} workers would be loaded above {MOST_LOAD:.0%}"
        return Choice(profile, settings, most, estimated, None, None, why)
    trials: dict[int, Trial] = {}

    def meets(workers: int) -> bool:
        if workers not in trials:
            trials[workers] = trial(group, tuned, workers, seed=seed)
        return trials[workers].meets(goal)

    found = smallest(meets, estimated, most_workers, fewest)
    if found is None:
        worst = min(trials[most_workers].agents, key=lambda agent: agent.in_time)
        why = f"with {most_workers} of them {worst.agent_id} has {worst.in_time:.1%} in time"
        return Choice(profile, settings, most, estimated, None, trials[most_workers], why)
    return Choice(profile, settings, most, estimated, found, trials[found])


def _too_slow(group: Group, profile: EngineProfile, goal: float) -> str:
    """Why not even idle workers that share a cache are fast enough; "" where they are."""
    sent: dict[str, int] = {}
    late: dict[str, int] = {}
    for arrival, tokens in zip(group.arrivals, least_computed(group.arrivals), strict=True):
        target = group.target_ms(arrival)
        sent[arrival.agent_id] = sent.get(arrival.agent_id, 0) + 1
        if target is not None and 1_000 * unloaded_first_token_s(profile, tokens) > target:
            late[arrival.agent_id] = late.get(arrival.agent_id, 0) + 1
    for agent_id, count in late.items():
        share = count / sent[agent_id]
        if share > 1 - goal:
            return f"even idle, it gives {share:.1%} of {agent_id}'s first tokens too late"
    return ""


def best(choices: Sequence[Choice]) -> Choice | None:
    """The choice with the fewest devices, of equals that with the fewest workers, then the first; None: none meets."""
    possible = [choice for choice in choices if choice.workers is not None]
    return min(possible, key=lambda choice: (choice.devices or 0, choice.workers or 0), default=None)
