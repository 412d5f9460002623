"""What goes wrong in the scenarios of the specification, as plans for the fleet simulation."""

from typing import Final

from recursant.sim.fleet.spec import Fault, FaultKind

# SPEC, reference figures: 5 % injected errors.
ERROR_SHARE: Final = 0.05
# Of all KV blocks, each second: an idle worker's cache is gone after 200 s.
LEAK_SHARE_PER_S: Final = 0.005


def errors_everywhere(share: float = ERROR_SHARE, *kinds: FaultKind) -> tuple[Fault, ...]:
    """Of the requests at every worker, `share` fails, in equal parts by each of `kinds`.

    Args:
        share: 0 to 1.
        kinds: resets, server errors or CUDA errors; none: resets and server errors.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share must be 0 to 1, not {share:g}")
    found = []
    left = 1.0
    for kind in kinds or (FaultKind.RESETS, FaultKind.SERVER_ERRORS):
        part = share / (len(kinds) or 2)
        # Of those that the kinds before it left.
        found.append(Fault(kind, share=part / left if part else 0.0))
        left -= part
    return tuple(found)


def leaking_worker(worker: int, at_s: float = 0.0, share_per_s: float = LEAK_SHARE_PER_S) -> tuple[Fault, ...]:
    """One worker loses `share_per_s` of its KV blocks each second, for good."""
    return (Fault(FaultKind.LEAK, worker=worker, at_s=at_s, share=share_per_s),)
