"""What is simulated: the workers, how news travels, and what goes wrong."""

from dataclasses import dataclass, replace
from enum import StrEnum

from recursant.sim.profiles import EngineProfile


class OnExhaustion(StrEnum):
    """What an engine does when a running sequence needs KV memory and none is free."""

    # vLLM: the last sequence loses its blocks and waits again.
    PREEMPT = "preempt"
    # An engine that cannot compute a sequence anew: the request that loses its blocks fails, out of memory.
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker.

    Attributes:
        profile: its device and model.
        models: names that it serves, each with its family.
        capacity_tokens: what it declares to take at once; None: what its KV cache holds.
        priority_scheduling: its engine orders by the request's priority.
        on_exhaustion: what its engine does when the KV cache is full.
        bandwidth_taken: the part of the device's memory bandwidth that others on it take; `profile` has what is left.
        claims: the profile of which it reports speed and bandwidth, as measured before others came; None: its own.
    """

    profile: EngineProfile
    models: tuple[tuple[str, str], ...] = (("sim", "sim"),)
    capacity_tokens: int | None = None
    priority_scheduling: bool = False
    on_exhaustion: OnExhaustion = OnExhaustion.PREEMPT
    bandwidth_taken: float = 0.0
    claims: EngineProfile | None = None

    def with_priorities(self) -> "WorkerSpec":
        """The same with an engine that orders by priority."""
        return replace(self, priority_scheduling=True)

    @property
    def declared_tokens(self) -> int:
        """What it declares to take at once."""
        return self.capacity_tokens or self.profile.kv_tokens


class FaultKind(StrEnum):
    """What goes wrong at a worker."""

    # A share of its requests meets a connection that breaks, or 503, before the answer begins.
    RESETS = "resets"
    # A share of its requests gets 500, an engine error.
    SERVER_ERRORS = "server_errors"
    # A share of its requests gets 500, a CUDA error; the process looks alive.
    CUDA_ERRORS = "cuda_errors"
    # Its memory leaks: blocks vanish from its KV cache until it restarts.
    LEAK = "leak"
    # The process is killed; it is back after `seconds`.
    KILL = "kill"
    # Steps take `factor` times as long.
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        kind: what goes wrong.
        worker: index; None: every worker.
        at_s: when it begins.
        seconds: how long it lasts; None: to the end.
        share: of the requests, for errors; of all KV blocks for each second, for a leak.
        factor: of SLOW.
    """

    kind: FaultKind
    worker: int | None = None
    at_s: float = 0.0
    seconds: float | None = None
    share: float = 0.0
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Environment:
    """How news travels, and what the gateways are.

    Attributes:
        replicas: gateways, each with its own table and counts; requests go to them in turn.
        beat_s: between two heartbeats of a worker.
        delay_s: a report needs at least this long to a gateway.
        delay_spread_s: and up to this much more, drawn for each.
        bytes_per_token: mean bytes of a prompt token; gateways see bytes.
        bytes_spread: its standard deviation over requests.
        retry_delay_s: between a failed attempt and the next, as Envoy waits.
        out_of_memory_restart_s: an engine that failed for memory is away for so long; 0: it goes on.
        faults: what goes wrong.
        seed: of everything random.
    """

    replicas: int = 2
    beat_s: float = 0.2
    delay_s: float = 0.002
    delay_spread_s: float = 0.003
    bytes_per_token: float = 4.2
    bytes_spread: float = 0.5
    retry_delay_s: float = 0.005
    out_of_memory_restart_s: float = 0.0
    faults: tuple[Fault, ...] = ()
    seed: int = 0
