"""What of the configuration changes while everything runs, and what waits for a restart. Pure.

Live are agents, paths, and the rules by which requests are admitted and routed; the rest is bound to sockets,
processes and connections that exist already.
"""

from collections.abc import Iterator
from typing import Any, Final

from recursant.admission.rules import DEFAULT_ADMISSION, Admission
from recursant.config.model import Config, Limits, Routing, Section

# Whole sections that go live.
LIVE_SECTIONS: Final = ("agents", "paths", "routing", "admission")
# Of `limits`: those that nothing was built with. A new listener, or a new buffer, is what the others would ask for.
LIVE_LIMITS: Final = ("agent_meta_bytes", "session_id_bytes", "request_id_bytes", "held_requests")


class GatewayRules(Section):
    """What every extproc process goes by, besides the policies. Of `limits`, only `LIVE_LIMITS` count."""

    routing: Routing = Routing()
    limits: Limits = Limits()
    admission: Admission = DEFAULT_ADMISSION

    @classmethod
    def of(cls, config: Config) -> "GatewayRules":
        """Those of a configuration."""
        limits = Limits().model_copy(update=_live_limits(config.limits))
        return cls(routing=config.routing, limits=limits, admission=config.admission)

    def onto(self, config: Config) -> Config:
        """The configuration with these rules."""
        limits = config.limits.model_copy(update=_live_limits(self.limits))
        return config.model_copy(update={"routing": self.routing, "limits": limits, "admission": self.admission})


def live_onto(running: Config, edited: Config) -> Config:
    """The running configuration with everything of the edited one that can go live."""
    rules = GatewayRules.of(edited).onto(running)
    return rules.model_copy(update={name: getattr(edited, name) for name in LIVE_SECTIONS})


def live_changes(running: Config, edited: Config) -> tuple[str, ...]:
    """The fields that change when the edited configuration goes live: `admission.kv_water_mark`."""
    return tuple(_differences(_dump(running), _dump(live_onto(running, edited)), ""))


def needs_restart(started: Config, edited: Config) -> tuple[str, ...]:
    """The fields in which the edited configuration differs and that only a restart puts in force.

    Args:
        started: the file as it was when everything started: not what was merged into it then.
        edited: the file as it is now.
    """
    return tuple(_differences(_dump(live_onto(started, edited)), _dump(edited), ""))


def _live_limits(limits: Limits) -> dict[str, int]:
    return {name: getattr(limits, name) for name in LIVE_LIMITS}


def _dump(config: Config) -> dict[str, Any]:
    return config.model_dump(mode="json", by_alias=True)


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str) -> Iterator[str]:
    """Where two documents of one shape differ, by name alone: a value may be a password."""
    for key, value in now.items():
        path, old = prefix + key, before[key]
        if isinstance(value, dict) and isinstance(old, dict):
            yield from _differences(old, value, f"{path}.")
        elif value != old:
            yield path
