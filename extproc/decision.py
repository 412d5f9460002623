"""A request on its way to a worker: as its headers show it, as its need is known, and where it goes."""

from dataclasses import dataclass, replace

from recursant.agents.priority import PriorityClass
from recursant.agents.request import AgentRequest
from recursant.routing.affinity import Trail
from recursant.routing.need import Need


# As all that is made for every request: not frozen, which would triple the time to make one, and with an `__init__` of
# its own, as the generated one stays interpreted where this is compiled, and takes five times as long.
@dataclass(init=False)
class Arrival:
    """A request as its headers show it.

    Attributes:
        agent: who sends it, its policy applied.
        at_s: when it came, monotonic seconds.
        content_length: bytes of the body; None where the headers do not tell.
        json_body: it has a body that is JSON.
        real_time: it says that somebody waits for it.
        request_headers: to set towards the worker for this request alone.
        session: what it says of its session; empty for nothing.
    """

    agent: AgentRequest
    at_s: float
    content_length: int | None
    json_body: bool
    real_time: bool
    request_headers: tuple[tuple[str, str], ...]
    session: bytes

    def __init__(
        self,
        agent: AgentRequest,
        at_s: float,
        content_length: int | None,
        json_body: bool,
        real_time: bool,
        request_headers: tuple[tuple[str, str], ...],
        session: bytes = b"",
    ) -> None:
        self.agent = agent
        self.at_s = at_s
        self.content_length = content_length
        self.json_body = json_body
        self.real_time = real_time
        self.request_headers = request_headers
        self.session = session


@dataclass(init=False)
class Demand:
    """A request with everything known that decides about it.

    Attributes:
        agent: who sends it.
        need: what the worker must have.
        priority_class: with the rules applied.
        checked: its model name was compared with what it may use.
        deadline_s: no first byte later than this, monotonic seconds.
        stands_in_for: the names of the family that this one replaces.
        trail: what leads to the worker that served earlier ones; None for nothing.
    """

    agent: AgentRequest
    need: Need
    priority_class: PriorityClass
    checked: bool
    deadline_s: float
    stands_in_for: frozenset[str]
    trail: Trail | None

    def __init__(
        self,
        agent: AgentRequest,
        need: Need,
        priority_class: PriorityClass,
        checked: bool,
        deadline_s: float,
        stands_in_for: frozenset[str] = frozenset(),
        trail: Trail | None = None,
    ) -> None:
        self.agent = agent
        self.need = need
        self.priority_class = priority_class
        self.checked = checked
        self.deadline_s = deadline_s
        self.stands_in_for = stands_in_for
        self.trail = trail


@dataclass(init=False)
class Decision:
    """Where a request goes.

    Attributes:
        rows: rows of the fleet table, best first.
        endpoints: the same as Envoy reads them, "ip:port,ip:port".
        model: what "auto" becomes; "" where nothing is known.
        allowed_models: the names that the body may use, "," around each; "" for any.
        replaced_models: names that become `model` as "auto" does, "," around each: what another family stands in for.
        engine_priority: for vLLM's own `priority`; None where no candidate runs priority scheduling.
        fallback: the fallback that was taken, for `x-recursant-fallback`.
        max_tokens: the most tokens of output that the body may ask for; None: as many as it likes.
        shaped: the tokens of output that memory left, where it decided.
        affinity: whether it went where its session or prefix is, for `x-recursant-affinity`; None: it has neither.
        cached_tokens: of its prompt, what the first worker is believed to have cached.
        prompt_tokens, answer_tokens: what it counts with at the first of `rows`.
    """

    rows: tuple[int, ...]
    endpoints: str
    model: str
    allowed_models: str
    engine_priority: int | None
    replaced_models: str
    fallback: str | None
    max_tokens: int | None
    shaped: int | None
    affinity: str | None
    cached_tokens: int
    prompt_tokens: int
    answer_tokens: int

    def __init__(
        self,
        rows: tuple[int, ...],
        endpoints: str,
        model: str,
        allowed_models: str,
        engine_priority: int | None,
        replaced_models: str = "",
        fallback: str | None = None,
        max_tokens: int | None = None,
        shaped: int | None = None,
        affinity: str | None = None,
        cached_tokens: int = 0,
        prompt_tokens: int = 0,
        answer_tokens: int = 0,
    ) -> None:
        self.rows = rows
        self.endpoints = endpoints
        self.model = model
        self.allowed_models = allowed_models
        self.engine_priority = engine_priority
        self.replaced_models = replaced_models
        self.fallback = fallback
        self.max_tokens = max_tokens
        self.shaped = shaped
        self.affinity = affinity
        self.cached_tokens = cached_tokens
        self.prompt_tokens = prompt_tokens
        self.answer_tokens = answer_tokens

    def need_of(self, demand: Demand) -> Need:
        """What the request was placed with."""
        need = demand.need
        return need if self.shaped is None else replace(need, expected_tokens=self.shaped)
