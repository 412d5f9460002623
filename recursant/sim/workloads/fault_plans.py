"""What goes wrong in the scenarios of the specification, as plans for the fleet simulation."""

from typing import Final

from recursant.sim.fleet.spec import Fault, FaultKind

# SPEC, reference figures: 5 % injected errors.
ERROR_SHARE: Final = 0.05
# Of all KV blocks, each second: an idle worker's cache is gone after 200 s.
LEAK_SHARE_PER_S: Final = 0.005


def errors_everywhere(share: float = ERROR_SHARE) -> tuple[Fault, ...]:
    """Of the requests at every worker, `share` fails: half by a connection that breaks before the answer, half by
    an engine error (500), which a gateway does not send again by itself."""
    if not 0 <= share <= 1:
        raise ValueError(f"a share must be 0 to 1, not {share:g}")
    return (
        Fault(FaultKind.RESETS, share=share / 2),
        # Of those that the first half left.
        Fault(FaultKind.SERVER_ERRORS, share=(share / 2) / (1 - share / 2)),
    )


def resets_everywhere(share: float = ERROR_SHARE) -> tuple[Fault, ...]:
    """Of the requests at every worker, `share` meets a connection that breaks before the answer, or 503."""
    if not 0 <= share <= 1:
        raise ValueError(f"a share must be 0 to 1, not {share:g}")
    return (Fault(FaultKind.RESETS, share=share),)


def leaking_worker(worker: int, at_s: float = 0.0, share_per_s: float = LEAK_SHARE_PER_S) -> tuple[Fault, ...]:
    """One worker loses `share_per_s` of its KV blocks each second, for good."""
    return (Fault(FaultKind.LEAK, worker=worker, at_s=at_s, share=share_per_s),)
