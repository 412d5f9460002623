"""The configuration, `recursant.yaml`, as typed and frozen values. Everything has a default.

These models say what is allowed; `recursant.config.load` reads files and turns what pydantic finds into errors
with file, line, field, value and what is allowed.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from recursant import names
from recursant.admission.rules import DEFAULT_ADMISSION, Admission
from recursant.agents.policy import AgentPolicy
from recursant.config import syntax

# extproc processes on one host.
MAX_EXTPROC_PROCESSES = 64
# No time here makes sense beyond a day, and Envoy's durations are bounded too.
DAY_MS = 86_400_000

Port = Annotated[int, Field(ge=1, le=65535)]
Milliseconds = Annotated[int, Field(ge=0, le=DAY_MS)]
PositiveMilliseconds = Annotated[int, Field(ge=1, le=DAY_MS)]
# As in the workers' own reports (recursant.store.codec).
WorkerId = Annotated[
    str,
    AfterValidator(syntax.check_worker_id),
    Field(json_schema_extra={"allowed": "1 to 128 visible ASCII characters"}),
]
Name = Annotated[
    str,
    AfterValidator(syntax.check_name),
    Field(json_schema_extra={"allowed": "1 to 256 printable characters without commas"}),
]
Host = Annotated[
    str, AfterValidator(syntax.check_host), Field(json_schema_extra={"allowed": "a host name or an IP address"})
]
WorkerHost = Annotated[Host, AfterValidator(syntax.check_dialled_host)]
Path = Annotated[
    str,
    Field(
        pattern=r"^/[^?#\s]*$",
        max_length=256,
        json_schema_extra={"allowed": "a path that begins with /, at most 256 characters, no query"},
    ),
]
ListenAddress = Annotated[
    str,
    AfterValidator(syntax.check_listen_address),
    Field(json_schema_extra={"allowed": "unix:/absolute/path, host:port or [IPv6]:port"}),
]
RedisUrl = Annotated[
    str,
    AfterValidator(syntax.check_redis_url),
    Field(json_schema_extra={"allowed": "redis://…, rediss://… or unix:///path"}),
]
_T = TypeVar("_T")
# YAML gives lists; strict mode alone would insist on tuples.
Sequence = Annotated[tuple[_T, ...], Field(strict=False)]


class Section(BaseModel):
    """A part of the configuration: frozen, strict about types, no unknown keys."""

    # Values stay out of pydantic's own error texts: one of them may be a password.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, hide_input_in_errors=True)


class ScoreWeights(Section):
    """Weights of the terms of the score (SPEC C2)."""

    # "classic": the weighted sum of the two terms below. "adaptive": the work ahead of the first token, in prompt
    # tokens; the weights have no part in it (docs/simulation.md).
    profile: Literal["classic", "adaptive"] = "classic"
    token_rate: Annotated[float, Field(ge=0, le=1_000_000)] = 0.6
    queue: Annotated[float, Field(ge=0, le=1_000_000)] = 0.4
    # Of what a worker is believed to have cached of a request; 0: affinity is off (docs/affinity.md).
    affinity: Annotated[float, Field(ge=0, le=1_000_000)] = 1.0

    @model_validator(mode="after")
    def _some_weight(self) -> "ScoreWeights":
        if self.token_rate + self.queue <= 0:
            raise ValueError("at least one weight must be above 0")
        return self


class AffinityBounds(Section):
    """How much is remembered of where sessions and prefixes were sent (SPEC C8, D1), in each extproc process."""

    sessions: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    # After its last request.
    session_ttl_s: Annotated[int, Field(ge=1, le=86_400)] = 1_800
    # Blocks of prompts, of agents whose policy says `affinity: prefix`.
    prefix_blocks: Annotated[int, Field(ge=1, le=10_000_000)] = 100_000
    prefix_ttl_s: Annotated[int, Field(ge=1, le=86_400)] = 600


class Routing(Section):
    """How requests find a worker."""

    # What happens to a request that names no known agent.
    default_fallback: Literal["round_robin", "reject"] = "round_robin"
    # Arrival to first response byte, for requests whose agent sets none.
    timeout_ms: PositiveMilliseconds = 15_000
    weights: ScoreWeights = ScoreWeights()
    affinity: AffinityBounds = AffinityBounds()
    # Length of the ordered list that Envoy walks; each step after the first is a retry.
    candidates: Annotated[int, Field(ge=1, le=8)] = 3


class StaticModel(Section):
    """A model of a static worker, with its family where the name does not tell it."""

    name: Name
    family: Name | None = None


def _model_entry_form(entry: Any) -> str:
    return MODEL_DETAILS if isinstance(entry, dict | StaticModel) else MODEL_NAME


# Which of its two forms an entry of `models` has; pydantic puts it into the location of errors.
MODEL_NAME = "<name>"
MODEL_DETAILS = "<details>"
ModelEntry = Annotated[
    Annotated[Name, Tag(MODEL_NAME)] | Annotated[StaticModel, Tag(MODEL_DETAILS)], Discriminator(_model_entry_form)
]


class StaticWorker(Section):
    """A worker that the configuration names; the control plane scrapes it from outside."""

    host: WorkerHost
    port: Port = 8000
    id: WorkerId | None = None
    models: Sequence[ModelEntry] = ()
    exclusive: bool = False
    capacity_tokens: Annotated[int, Field(ge=1, le=10**12)] | None = None
    scrape_interval_ms: Annotated[int, Field(ge=100, le=3_600_000)] = 1_000

    @property
    def worker_id(self) -> str:
        """The id under which the fleet knows it: `id`, or `host:port`."""
        return self.id or f"{self.host}:{self.port}"


class PathEntry(Section):
    """A request path that names the agent for clients that send no `X-Agent-ID` (SPEC A6)."""

    path: Path
    agent_id: str
    # The path the worker sees.
    rewrite: Path = "/v1/chat/completions"
    # May a client's own X-Agent-ID win here?
    allow_client_agent: bool = False


class FamilyPattern(Section):
    """Names the family of every model whose last path part matches the regular expression, ignoring case."""

    pattern: Annotated[
        str,
        AfterValidator(syntax.check_regex),
        Field(min_length=1, max_length=256, json_schema_extra={"allowed": "a regular expression of Python"}),
    ]
    family: Name


class Limits(Section):
    """Bounds on what a client may send."""

    body_bytes: Annotated[int, Field(ge=1_024, le=1024**3)] = 10 * 1024 * 1024
    agent_meta_bytes: Annotated[int, Field(ge=64, le=65_536)] = 4_096
    session_id_bytes: Annotated[int, Field(ge=16, le=4_096)] = 256
    request_id_bytes: Annotated[int, Field(ge=16, le=4_096)] = 128
    # The whole body must have arrived by then.
    body_timeout_ms: Annotated[int, Field(ge=100, le=DAY_MS)] = 60_000
    # A response that sends nothing for that long is cut; a running stream never is.
    idle_timeout_ms: Annotated[int, Field(ge=1_000, le=DAY_MS)] = 600_000
    workers: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    # Requests that wait for a worker at one time, in each extproc process.
    held_requests: Annotated[int, Field(ge=1, le=100_000)] = 4_096


class Cors(Section):
    """Browsers that may call the gateway. An empty list switches CORS off."""

    allow_origins: Sequence[str] = ("*",)
    max_age_s: Annotated[int, Field(ge=0, le=86_400)] = 600


class Gateway(Section):
    """Envoy's own listeners."""

    host: Host = names.LOOPBACK
    port: Port = names.GATEWAY_PORT
    admin_host: Host = names.LOOPBACK
    admin_port: Port = names.ENVOY_ADMIN_PORT
    cors: Cors = Cors()


class ExtProc(Section):
    """Where Envoy reaches the ext_proc service, and how long it waits."""

    # "unix:/path" or "host:port"; the processes share them out.
    listen: Annotated[Sequence[ListenAddress], AfterValidator(syntax.check_some)] = (
        "unix:/run/recursant/extproc.sock",
    )
    # Of one host, which share the requests and count together.
    processes: Annotated[int, Field(ge=1, le=MAX_EXTPROC_PROCESSES)] = 1
    message_timeout_ms: PositiveMilliseconds = 250
    # The longest hold that extproc may ask for.
    max_message_timeout_ms: PositiveMilliseconds = 300_000
    # Where the last good policies are kept for a start without the control plane.
    state_dir: Annotated[str, Field(min_length=1, max_length=4_096)] | None = None
    metrics_host: Host = names.LOOPBACK
    # Of the first process; the others follow.
    metrics_port: Port = names.EXTPROC_METRICS_PORT

    @property
    def metrics_ports(self) -> tuple[int, ...]:
        """One for each process."""
        return tuple(range(self.metrics_port, self.metrics_port + self.processes))

    def listen_of(self, process: int) -> tuple[str, ...]:
        """The addresses that a process serves; processes count from 1. Empty where there are too few."""
        return self.listen[process - 1 :: self.processes]


class Xds(Section):
    """The ADS server."""

    host: Host = names.LOOPBACK
    port: Port = names.XDS_PORT
    # Changes within this time are pushed together.
    debounce_ms: Annotated[int, Field(ge=0, le=10_000)] = 100
    # A client that has not answered a push by then is reported as stale.
    ack_timeout_ms: Annotated[int, Field(ge=100, le=DAY_MS)] = 10_000
    metrics_host: Host = names.LOOPBACK
    metrics_port: Port = names.XDS_METRICS_PORT
    # Where the applied policies are kept for a Redis that has lost them.
    state_dir: Annotated[str, Field(min_length=1, max_length=4_096)] | None = None


class Api(Section):
    """The control API."""

    host: Host = names.LOOPBACK
    port: Port = names.API_PORT
    # What clients send as "Authorization: Bearer …"; absent: nothing is asked for.
    token: Annotated[str, Field(min_length=8, max_length=512)] | None = None

    def __repr__(self) -> str:
        return f"Api(host={self.host!r}, port={self.port}, token={'***' if self.token else None})"

    __str__ = __repr__


class WarmUpHook(Section):
    """Called when a policy is applied that no worker can serve (SPEC A4)."""

    # The program and its arguments; no shell.
    command: Sequence[str] = ()
    url: Annotated[str, Field(pattern=r"^https?://", max_length=2_048)] | None = None
    timeout_ms: PositiveMilliseconds = 60_000


class Redis(Section):
    """The shared state. `recursant up` starts an embedded server when the URL is absent."""

    url: RedisUrl | None = None

    def __repr__(self) -> str:
        return "Redis(url=***)" if self.url else "Redis(url=None)"

    __str__ = __repr__


class Liveness(Section):
    """When a worker that does not report is taken out (SPEC B2)."""

    missed_beats: Annotated[int, Field(ge=1, le=100)] = 3
    min_silence_ms: PositiveMilliseconds = 600
    # After the reader's Redis link healed, or the fleet fell silent at once, nobody is judged for this long.
    grace_ms: Milliseconds = 2_000
    # A worker missing for this long is forgotten.
    forget_after_ms: Annotated[int, Field(ge=1_000, le=30 * DAY_MS)] = 600_000


class Isolation(Section):
    """When evidence takes a worker out, and for how long (SPEC F1)."""

    # False: nobody is taken out but by an operator.
    enabled: bool = True
    # Of the ready workers; the last one is never taken out, whatever this says.
    max_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    cuda_errors: Annotated[int, Field(ge=1, le=1_000)] = 3
    cuda_ms: PositiveMilliseconds = 600_000
    oom_ms: PositiveMilliseconds = 10_000
    # For server errors, requests without an answer, and a worker that cannot be reached.
    errors_ms: PositiveMilliseconds = 30_000
    probe_ms: PositiveMilliseconds = 60_000
    # A failed trial doubles the time up to this.
    longest_ms: PositiveMilliseconds = 3_600_000
    trial_ms: PositiveMilliseconds = 60_000
    trial_requests: Annotated[int, Field(ge=1, le=1_000)] = 3


class Probes(Section):
    """Requests of our own that make each worker generate (SPEC F2)."""

    enabled: bool = True
    interval_s: Annotated[float, Field(ge=0.1, le=86_400)] = 30.0
    timeout_ms: PositiveMilliseconds = 10_000
    prompt: Annotated[str, Field(min_length=1, max_length=4_096)] = "The capital of France is"
    max_tokens: Annotated[int, Field(ge=1, le=256)] = 8
    # A worker's answer must be the one that it gave before.
    compare: bool = True


class Decisions(Section):
    """The log of decisions (SPEC C5), kept in memory by each extproc process."""

    # Share of the requests that are kept though nothing was special about them.
    sample: Annotated[float, Field(ge=0, le=1)] = 0.01
    # Of each kind: of the sample, and of those that are always kept.
    keep: Annotated[int, Field(ge=1, le=100_000)] = 1_000


DEFAULT_PATHS = (
    PathEntry(path="/api/chat", agent_id="chat-web"),
    PathEntry(path="/api/summary", agent_id="batch-summary"),
)


class Config(Section):
    """One `recursant.yaml`."""

    routing: Routing = Routing()
    agents: Sequence[AgentPolicy] = ()
    workers: Sequence[StaticWorker] = ()
    # Entries of the default table whose agent does not exist are left out.
    paths: Sequence[PathEntry] | None = None
    families: Sequence[FamilyPattern] = ()
    limits: Limits = Limits()
    admission: Admission = DEFAULT_ADMISSION
    gateway: Gateway = Gateway()
    extproc: ExtProc = ExtProc()
    xds: Xds = Xds()
    api: Api = Api()
    warm_up: WarmUpHook = WarmUpHook()
    redis: Redis = Redis()
    liveness: Liveness = Liveness()
    isolation: Isolation = Isolation()
    probes: Probes = Probes()
    decisions: Decisions = Decisions()

    @property
    def path_entries(self) -> tuple[PathEntry, ...]:
        """The configured path table, or the entries of the default one whose agents exist."""
        if self.paths is not None:
            return self.paths
        known = {agent.agent_id for agent in self.agents}
        return tuple(entry for entry in DEFAULT_PATHS if entry.agent_id in known)
