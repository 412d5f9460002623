"""What happens to a request that nobody can take now (SPEC C4, E2, DESIGN §9 "Order of answers"). Pure."""

from dataclasses import dataclass

from recursant.agents.policy import AgentPolicy
from recursant.problems import ApiProblem, shed, unavailable
from recursant.routing.picker import Refusal


@dataclass(frozen=True, slots=True)
class Hold:
    """Keep it here until somebody has room, for at most `for_s` seconds; `fallback` if that is a strategy's doing."""

    for_s: float
    fallback: str | None = None


@dataclass(frozen=True, slots=True)
class Degrade:
    """Try another family in its place."""

    family: str


@dataclass(frozen=True, slots=True)
class TakeTurns:
    """Send it to whoever's turn it is, full or not."""


Verdict = Hold | Degrade | TakeTurns | ApiProblem


def verdict(refusal: Refusal, policy: AgentPolicy | None, *, left_s: float, what: str, degraded: bool) -> Verdict:
    """What a policy says to a refusal.

    A worker whose slots are taken will have room again, so that alone is no failure: the request waits its turn, which
    is what it would do in the engine's own queue, but in the order of the classes. Only `drop` refuses to wait.

    Args:
        refusal: why nobody can take it.
        policy: of the agent; None without one.
        left_s: seconds until its deadline.
        what: what was asked for, for the message ("the family 'qwen'").
        degraded: another family was tried already.
    """
    strategy = "reject" if policy is None else policy.fallback_strategy
    if refusal is Refusal.MEMORY and policy is not None and policy.on_memory_pressure == "hold":
        return Hold(left_s)
    other = None if policy is None else policy.degrade_family
    if other is not None and not degraded:
        return Degrade(other)
    if refusal is Refusal.MEMORY:
        return shed("not enough KV memory is free for this request", code="kv_memory")
    if strategy == "drop":
        return shed(f"no worker for {what} has room, and this agent does not wait", code="dropped")
    if strategy == "queue_and_retry" and policy is not None:
        return Hold(min(left_s, policy.retry_max * policy.retry_delay_ms / 1_000), strategy)
    if refusal in (Refusal.SLOTS, Refusal.EXPRESS):
        return TakeTurns() if strategy == "round_robin" else Hold(left_s)
    if refusal is Refusal.NO_WORKER:
        return unavailable(f"no worker that serves {what} is ready", code="no_worker")
    return unavailable(f"no worker for {what} has the {refusal.value} that this request needs", code=f"no_{refusal}")
