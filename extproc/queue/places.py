"""Places for requests of other processes: chosen with this gateway, counted here until they are taken over."""

from collections.abc import Callable
from typing import Final, cast

from extproc.decision import Decision, Demand
from extproc.gateway import Gateway
from extproc.queue.messages import Enter
from extproc.queue.place import Place
from extproc.sinks import Recorder
from recursant.agents.policy import AgentPolicy
from recursant.agents.priority import PriorityClass
from recursant.agents.request import AgentRequest
from recursant.routing.affinity import Affinity, Leaning, Trail
from recursant.routing.picker import Refusal

# Stand-ins for policies of other processes: does a shorter answer do?
_POLICIES: Final = {
    False: AgentPolicy(agent_id="any"),
    True: AgentPolicy(agent_id="any", on_memory_pressure="shape"),
}


class GatewayPlaces:
    """The `Places` of a gateway. What its process records about its own requests stays untouched.

    Args:
        gateway: chooses; its configuration of the moment counts.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        # With turns of its own for `round_robin`.
        self._told = _Told(gateway.config.routing.affinity)
        self._chooser = gateway.twin(cast("Recorder", _Silent()), counts=True, affinity=self._told)

    def find(self, enter: Enter, count_as: PriorityClass | None, fallback: str | None) -> Place | Refusal:
        """See `Places`."""
        self._chooser.config = self._gateway.config
        self._told.leans = Leaning(enter.cached, enter.sticky)
        found = self._chooser.place(_demand(enter), count_as=count_as, fallback=fallback)
        if isinstance(found, Refusal):
            return found
        return _place(found)

    def release(self, place: Place) -> None:
        """See `Places`."""
        self._gateway.table.release(place.rows[0], place.prompt_tokens, place.answer_tokens)


class _Told(Affinity):
    """What a request leans to, as its own process has found out, and nothing else."""

    leans: Leaning | None = None

    def leaning(self, trail: Trail, prompt_tokens: int, now: float) -> Leaning | None:
        return self.leans

    def placed(self, trail: Trail, worker_id: str, tokens: int, now: float) -> None:
        """Its process remembers that."""


class _Silent:
    """A recorder that records nothing: whoever takes the place does."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return _nothing


def _nothing(*_: object) -> None:
    pass


def _place(found: Decision) -> Place:
    return Place(
        found.rows,
        found.model,
        found.fallback,
        found.shaped,
        found.affinity,
        found.cached_tokens,
        found.prompt_tokens,
        found.answer_tokens,
    )


def _demand(enter: Enter) -> Demand:
    """The request as far as it decides about its place."""
    policy = _POLICIES[enter.shapes] if enter.known else None
    agent = AgentRequest(enter.agent, policy, 0, enter.priority_class)
    trail = Trail() if enter.cached else None
    return Demand(agent, enter.need, enter.priority_class, checked=True, deadline_s=enter.until_s, trail=trail)
