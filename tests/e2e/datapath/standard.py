"""The configuration and the fleet that most of these tests run with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from datapath.worker import Worker
from recursant.agents.policy import AgentPolicy
from recursant.config.model import Config
from recursant.config.model import ExtProc as ExtProcSection
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from recursant.v1.worker_state_pb2 import WorkerState

QWEN = ("Qwen/Qwen2.5-7B", "qwen")
PHI = ("microsoft/phi-4", "phi")
CHAT = {"x-agent-id": "chat-web"}
# Who of the standard fleet serves an agent of the standard configuration.
FAMILY_OF = {"chat-web": {"w0", "w1"}, "batch-summary": {"w1", "w2"}}


def record(
    worker_id: str,
    endpoint: str | None,
    *models: tuple[str, str],
    status: WorkerStatus = WorkerStatus.READY,
    **facts: Any,
) -> WorkerRecord:
    """A worker; `models` are (name, family)."""
    state = WorkerState(id=worker_id, address=endpoint or "", **facts)
    served = tuple(Model(name, family) for name, family in models)
    return WorkerRecord(worker_id, status, endpoint, served, state, last_beat=0.0)


def agent(agent_id: str, **fields: Any) -> AgentPolicy:
    return AgentPolicy(agent_id=agent_id, **fields)


def standard_fleet(workers: Iterable[Worker]) -> list[WorkerRecord]:
    """Qwen on the first two workers, phi on the last two."""
    served = [(QWEN,), (QWEN, PHI), (PHI,)]
    return [record(worker.name, worker.endpoint, *models) for worker, models in zip(workers, served, strict=False)]


def standard_config(**sections: Any) -> Config:
    """Four agents. A busy machine may make the stand-in for extproc slow: it has all the time it needs."""
    sections.setdefault("extproc", ExtProcSection(message_timeout_ms=10_000))
    return Config(
        agents=[
            agent("chat-web", model_family="qwen", priority=10),
            agent("batch-summary", model_family="phi", priority=1),
            agent("lonely", model_family="mistral"),
            agent("strict", model_family="qwen", failure_mode="closed"),
        ],
        **sections,
    )
