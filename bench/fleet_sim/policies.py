"""The policies that are compared, by name."""

from typing import Final

from bench.fleet_sim.fleets import Agents
from recursant.sim.fleet.policies.ablations import ablations, affinity_ablations, with_weights, without_express
from recursant.sim.fleet.policies.endpoint_picker import EndpointPickerPolicy
from recursant.sim.fleet.policies.oracle import OraclePolicy
from recursant.sim.fleet.policies.plain import PLAIN_POLICIES, PlainPolicy
from recursant.sim.fleet.policies.recursant import RecursantPolicy
from recursant.sim.fleet.router import Policy

ROUND_ROBIN: Final = "round robin"
NO_RETRIES: Final = "round robin, no retries"
ERRORS_TOO: Final = "round robin, our retries"
ENDPOINT_PICKER: Final = "queue + KV + prefix (2/2/3)"
ORACLE: Final = "oracle"
CLASSIC: Final = "recursant (classic)"
ADAPTIVE: Final = "recursant (adaptive)"
NO_EXPRESS: Final = "adaptive, without the express lane"
OTHERS: Final = (*PLAIN_POLICIES, ENDPOINT_PICKER)
COMPARED: Final = (*OTHERS, CLASSIC, ADAPTIVE, ORACLE)


def policies(agents: Agents) -> dict[str, Policy]:
    """Every policy for these agents."""
    families = agents.families
    found: list[Policy] = [
        *(PlainPolicy(name, families) for name in PLAIN_POLICIES),
        EndpointPickerPolicy(families),
        OraclePolicy(families),
        RecursantPolicy(agents.config, CLASSIC),
        RecursantPolicy(with_weights(agents.config, profile="adaptive"), ADAPTIVE),
        *ablations(agents.config),
        *affinity_ablations(agents.config),
        without_express(agents.config),
    ]
    named = {policy.name: policy for policy in found}
    # What stands in front of many fleets: a proxy as it is, with nothing set.
    named[NO_RETRIES] = PlainPolicy(ROUND_ROBIN, families, retries=0)
    # And one that does what ours does when an attempt fails: what is left is the routing.
    named[ERRORS_TOO] = PlainPolicy(ROUND_ROBIN, families, retries_errors=True)
    return named


def affinity_ablated() -> tuple[str, ...]:
    """The names of ours with less or more affinity."""
    return tuple(policy.name for policy in affinity_ablations(Agents.nobody().config))


def ablated() -> tuple[str, ...]:
    """The names of ours with a part switched off."""
    return tuple(policy.name for policy in ablations(Agents.nobody().config))
