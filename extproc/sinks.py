"""Where the decision leaves its numbers and what it saw of workers."""

from typing import Protocol

from recursant.fleet.evidence import Evidence


class Recorder(Protocol):
    """Where the decision leaves its numbers. Labels are configured names and known workers only."""

    def request_finished(self, agent: str, worker: str, outcome: str) -> None:
        """Count a request whose stream has ended."""

    def decided(self, seconds: float) -> None:
        """Record the time of one decision."""

    def fallback_taken(self, agent: str, strategy: str) -> None:
        """Count a fallback."""

    def affinity_settled(self, agent: str, outcome: str) -> None:
        """Count what became of a request's affinity (`recursant.routing.affinity`)."""


class EvidenceSink(Protocol):
    """Takes what requests show about workers; `Ward.witness` is one."""

    def __call__(self, worker_id: str, evidence: Evidence, *, text: str = "", since: float | None = None) -> None:
        """Take one piece of evidence; `since` is when the request was sent, in the gateway's time."""


def ignore_evidence(worker_id: str, evidence: Evidence, *, text: str = "", since: float | None = None) -> None:
    """Take evidence and do nothing with it."""
