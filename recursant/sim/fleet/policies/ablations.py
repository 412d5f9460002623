"""Our own policy with its parts switched off one by one: what each of them is worth."""

from typing import Final, Literal

import numpy as np

from recursant.config.model import Config
from recursant.fleet.facts import Fact
from recursant.sim.fleet.policies.recursant import RecursantPolicy

_NOTHING: Final = np.nan


def with_weights(config: Config, **changes: float | str) -> Config:
    """The configuration with other weights, or another profile, of the score."""
    weights = config.routing.weights.model_copy(update=changes)
    return config.model_copy(update={"routing": config.routing.model_copy(update={"weights": weights})})


def with_affinity(config: Config, affinity: Literal["none", "session", "prefix"]) -> Config:
    """The configuration with agents that all lead back by this."""
    agents = tuple(agent.model_copy(update={"affinity": affinity}) for agent in config.agents)
    return config.model_copy(update={"agents": agents})


def affinity_ablations(config: Config) -> list[RecursantPolicy]:
    """Our policy by the profile `adaptive` with less affinity, with more, and without what it knows of prompts."""
    adaptive = with_weights(config, profile="adaptive")
    alone = with_weights(adaptive, affinity=0.0)
    blind = {Fact.UNREAD_WORK: 0.0}
    return [
        RecursantPolicy(alone, "adaptive, without affinity"),
        RecursantPolicy(adaptive, "adaptive, without unread prompts", blind),
        RecursantPolicy(alone, "adaptive, without either", blind),
        RecursantPolicy(with_affinity(adaptive, "prefix"), "adaptive, by prefix as well"),
        RecursantPolicy(with_weights(config, affinity=0.0), "classic, without affinity"),
    ]


def without_express(config: Config) -> RecursantPolicy:
    """Our policy by the profile `adaptive` without the express lane."""
    admission = config.admission
    off = admission.model_copy(update={"express": admission.express.model_copy(update={"enabled": False})})
    adaptive = with_weights(config.model_copy(update={"admission": off}), profile="adaptive")
    return RecursantPolicy(adaptive, "adaptive, without the express lane")


def ablations(config: Config) -> list[RecursantPolicy]:
    """Our policy, by the score of the specification, with one of its parts switched off, each by itself."""

    no_isolation = config.model_copy(update={"isolation": config.isolation.model_copy(update={"enabled": False})})
    places = (Fact.PLACES_LOW, Fact.PLACES_NORMAL, Fact.PLACES_HIGH, Fact.PLACES_CRITICAL)
    return [
        RecursantPolicy(with_weights(config, token_rate=0.0), "without the speed term"),
        RecursantPolicy(with_weights(config, queue=0.0), "without the queue term"),
        RecursantPolicy(config, "without counting picks in flight", {Fact.IN_FLIGHT: 0.0, Fact.IN_FLIGHT_AT_BEAT: 0.0}),
        RecursantPolicy(config, "without the KV water-mark", {Fact.KV_ROOM_TOKENS: _NOTHING}),
        RecursantPolicy(config, "without shares of slots", dict.fromkeys(places, _NOTHING)),
        RecursantPolicy(
            config,
            "without the wait filter",
            {Fact.QUEUE_WAIT_MS: 0.0, Fact.WAITING_TOKENS: 0.0, Fact.SLOTS: _NOTHING},
        ),
        RecursantPolicy(no_isolation, "without isolation"),
        RecursantPolicy(config, "without engine priorities", priority_scheduling=False),
    ]
