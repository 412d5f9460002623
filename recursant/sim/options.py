"""What a simulated worker can be told. Everything has a default."""

import socket
from dataclasses import dataclass, field

from recursant import names
from recursant.sim.engine import Engine
from recursant.sim.profiles import EngineProfile, profile_named, with_overrides
from recursant.sim.waiting import SchedulingPolicy

_WILDCARDS = ("", "0.0.0.0", "::")


@dataclass(frozen=True, slots=True)
class SimOptions:
    """The options of one worker. Times are seconds where the name ends in `_s`.

    Attributes:
        worker_id: its stable name; None: `sim-PORT`.
        host, port: where it listens; port 0 takes a free one.
        models: the names it serves; the first one is what a request gets that names none.
        lora_adapters: names it serves too, as adapters of the first model.
        redis_url, api_url: where it reports; None: nowhere there.
        report_interval_ms: how often.
        advertise: where Envoy dials it, `host:port`; None: its own host and port.
        exclusive: only agents whose policy names it may use it.
        capacity_tokens: what it declares to take at once; None: what its KV cache holds.
        max_queue: the longest queue it wants; None: not said.
        max_num_queued_reqs: waiting requests above which it answers 503.
        profile: hardware and model, a name of `recursant.sim.profiles`.
        max_model_len, max_num_seqs, max_num_batched_tokens, kv_blocks, block_tokens: instead of the profile's.
        scheduling_policy: vLLM's `--scheduling-policy`, "fcfs" or "priority".
        prefix_caching, chunked_prefill: as vLLM's flags.
        server_load_tracking: whether /load counts; vLLM's is 0 without that flag.
        seed: of everything random.
        speed: how much faster than its profile's hardware it runs.
        drain_grace_s: how long it still takes requests after it was told to stop, so that the news gets round.
        drain_timeout_s: how long it then waits for running streams.
        keep_alive_s: after how long an idle connection is closed; vLLM's default.
        recorded_requests: how many requests it remembers for tests.
    """

    worker_id: str | None = None
    host: str = names.LOOPBACK
    port: int = names.WORKER_PORT
    models: tuple[str, ...] = ("sim",)
    lora_adapters: tuple[str, ...] = ()
    redis_url: str | None = field(default=None, repr=False)
    api_url: str | None = None
    report_interval_ms: int = 200
    advertise: str | None = None
    exclusive: bool = False
    capacity_tokens: int | None = None
    max_queue: int | None = None
    max_num_queued_reqs: int = 10_000
    profile: str = "small"
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_blocks: int | None = None
    block_tokens: int | None = None
    scheduling_policy: str = SchedulingPolicy.FCFS.value
    prefix_caching: bool = True
    chunked_prefill: bool = True
    server_load_tracking: bool = False
    seed: int = 0
    speed: float = 1.0
    drain_grace_s: float = 0.3
    drain_timeout_s: float = 10.0
    keep_alive_s: int = 5
    recorded_requests: int = 256

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port must be 0 to 65535, not {self.port}")
        if not self.models or not all(self.models):
            raise ValueError("models needs at least one name")
        if len(set(self.served_names)) != len(self.served_names):
            raise ValueError("models and lora_adapters must not name anything twice")
        if self.speed <= 0:
            raise ValueError(f"speed must be above 0, not {self.speed:g}")
        if self.report_interval_ms < 1:
            raise ValueError(f"report_interval_ms must be at least 1, not {self.report_interval_ms}")
        if self.max_num_queued_reqs < 1:
            raise ValueError(f"max_num_queued_reqs must be at least 1, not {self.max_num_queued_reqs}")
        if self.scheduling_policy not in list(SchedulingPolicy):
            raise ValueError(f"scheduling_policy must be one of {', '.join(SchedulingPolicy)}")
        # Says early what does not fit together.
        self.engine()

    @property
    def served_names(self) -> tuple[str, ...]:
        """All names that requests may use."""
        return self.models + self.lora_adapters

    def id_at(self, port: int) -> str:
        """The worker's id when it listens on `port`."""
        return self.worker_id or f"sim-{port}"

    def address_at(self, port: int) -> str:
        """Where Envoy dials it when it listens on `port`, `host:port` or `[v6]:port`."""
        if self.advertise:
            return self.advertise
        host = socket.gethostname() if self.host in _WILDCARDS else self.host
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def engine_profile(self) -> EngineProfile:
        """The profile with the given figures in place.

        Raises:
            ValueError: there is no such profile, or the figures do not fit together.
        """
        return with_overrides(
            profile_named(self.profile),
            max_model_len=self.max_model_len,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            kv_blocks=self.kv_blocks,
            block_tokens=self.block_tokens,
        )

    def engine(self) -> Engine:
        """A fresh engine.

        Raises:
            ValueError: the figures do not fit together.
        """
        return Engine(
            self.engine_profile(),
            policy=SchedulingPolicy(self.scheduling_policy),
            prefix_caching=self.prefix_caching,
            chunked_prefill=self.chunked_prefill,
            seed=self.seed,
        )
