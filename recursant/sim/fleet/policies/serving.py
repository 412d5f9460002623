"""Which workers serve whom, by configuration: what every policy knows, the simplest included."""

from collections.abc import Mapping, Sequence

from recursant.sim.fleet.spec import WorkerSpec

# Attempts after the first one of proxies in front of a policy that gives no list of its own: connections that fail
# and 503, twice, as service meshes set it by default.
MESH_RETRIES = 2


class Serving:
    """Workers by the family that an agent asks for.

    Args:
        specs: the fleet.
        families: of each agent; one that is not named may use any worker.
    """

    def __init__(self, specs: Sequence[WorkerSpec], families: Mapping[str, str]) -> None:
        self._all = tuple(range(len(specs)))
        self._families = families
        self._of: dict[str, tuple[int, ...]] = {}
        for index, spec in enumerate(specs):
            for family in dict.fromkeys(family for _, family in spec.models):
                self._of[family] = (*self._of.get(family, ()), index)

    def of_agent(self, agent_id: str) -> tuple[int, ...]:
        """The workers that may serve an agent; never empty in a fleet that fits its agents."""
        family = self._families.get(agent_id)
        return self._all if family is None else self._of[family]
