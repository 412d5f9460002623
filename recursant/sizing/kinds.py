"""Kinds of workers: the profiles of real devices, by name and by family."""

from collections.abc import Iterable, Sequence
from typing import Final

from recursant.sim.engine_profile import EngineProfile
from recursant.sim.profiles import PROFILES, SMALL, TINY, profile_named
from recursant.sizing.load import Group

# Round numbers for tests: they plan nothing.
_UNREAL: Final = (SMALL.name, TINY.name)


def kinds_named(names: Iterable[str]) -> list[EngineProfile]:
    """The profiles of these names, in their order; of no names, all that are of real devices.

    Raises:
        ValueError: a name is unknown; the message lists those there are.
    """
    chosen = [profile_named(name) for name in dict.fromkeys(names)]
    return chosen or [profile for name, profile in PROFILES.items() if name not in _UNREAL]


def kinds_for(group: Group, kinds: Sequence[EngineProfile]) -> list[EngineProfile]:
    """Those of the kinds whose model is of the group's family, by the words of their names; all, if it needs none.

    Raises:
        ValueError: there is none.
    """
    if group.family is None:
        return list(kinds)
    found = [kind for kind in kinds if group.family.lower() in kind.name]
    if not found:
        agents = ", ".join(policy.agent_id for policy in group.policies)
        raise ValueError(
            f"no kind of worker serves family {group.family!r}, which {agents} needs: among {_listed(kinds)}. Say "
            "another family with --load family=..., or name a kind with --worker"
        )
    return found


def _listed(kinds: Sequence[EngineProfile]) -> str:
    return ", ".join(kind.name for kind in kinds)
