"""One request of a workload: when it comes, from whom, and how long it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of a workload.

    Attributes:
        at_s: seconds since the start of the workload.
        agent_id: who sends it.
        prompt_tokens, output_tokens: its true lengths.
        session_id: of its conversation; "" for none.
        prefix_blocks: ids of its prompt's blocks of 512 tokens, chained: equal ids mean equal prefixes.
        latency_sla_ms: target for the first token; None: the agent's.
    """

    at_s: float
    agent_id: str
    prompt_tokens: int
    output_tokens: int
    session_id: str = ""
    prefix_blocks: tuple[int, ...] = ()
    latency_sla_ms: float | None = None
