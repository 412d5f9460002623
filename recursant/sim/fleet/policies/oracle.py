"""Perfect, instant knowledge: looks into every engine at the moment of the choice, true lengths included.

A bound in knowledge, not in foresight: it gives each request to the worker where its first token comes soonest as
things stand, and knows nothing of what arrives next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recursant.sim.fleet.policies.plain import PlainRouter
from recursant.sim.fleet.policies.serving import MESH_RETRIES
from recursant.sim.fleet.request import Request
from recursant.sim.fleet.router import Router, Surroundings
from recursant.sim.fleet.worker import SimulatedWorker


class OracleRouter(PlainRouter):
    """See the module."""

    def __init__(self, surroundings: Surroundings, families: Mapping[str, str], retries: int) -> None:
        super().__init__(surroundings, families, retries)
        self._workers = surroundings.workers

    def choose(self, request: Request, among: Sequence[int]) -> int:
        """See PlainRouter."""
        up = [worker for worker in among if self._workers[worker].up] or among
        return min(up, key=lambda worker: (_first_token_s(self._workers[worker], request), worker))


def _first_token_s(worker: SimulatedWorker, request: Request) -> float:
    """About how long the request's first token takes there: what is before it in the engine, then its own prompt."""
    engine = worker.engine
    profile = engine.profile
    arrival = request.arrival
    sequences = engine.sequences()
    before = held = 0
    leaving = 0.0
    for sequence in sequences:
        before += max(0, sequence.prompt_tokens - sequence.computed)
        held += sequence.length
        leaving += sequence.output_tokens - sequence.generated
    found, _ = engine.pool.matching(
        worker.hashes(arrival.prefix_blocks, arrival.prompt_tokens), arrival.prompt_tokens // profile.block_tokens
    )
    own = arrival.prompt_tokens - min(found * profile.block_tokens, arrival.prompt_tokens - 1)
    decoding = len(sequences)
    budget = max(1, profile.max_num_batched_tokens - decoding)
    full, rest = divmod(before + own, budget)
    step = profile.step_overhead_s + decoding * profile.sequence_time_s + held * profile.kv_read_s_per_token
    seconds = full * (step + profile.token_time(profile.max_num_batched_tokens))
    seconds += step + profile.token_time(rest + decoding)
    # Where its tokens do not fit, somebody has to leave first: each step frees a share of those who run.
    missing = arrival.prompt_tokens - engine.pool.free * profile.block_tokens
    waiting = engine.waiting or len(sequences) >= profile.max_num_seqs
    if sequences and (missing > 0 or waiting):
        mean_left = leaving / len(sequences)
        turns = (engine.waiting + 1) / max(1, engine.running)
        seconds += mean_left * turns * (step + profile.token_time(decoding))
    return seconds * worker.slowness


@dataclass(frozen=True, slots=True)
class OraclePolicy:
    """Perfect, instant knowledge."""

    families: Mapping[str, str]
    name: str = "oracle"
    retries: int = MESH_RETRIES
    report_s: float | None = 0.0
    priority_scheduling: bool = False
    retries_errors: bool = False

    def router(self, surroundings: Surroundings) -> Router:
        """See Policy."""
        return OracleRouter(surroundings, self.families, self.retries)
