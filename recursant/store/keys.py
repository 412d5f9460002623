"""The names of everything that we keep in Redis (DESIGN §6)."""

from typing import Final

# Hash: worker id -> serialised WorkerState, its last report.
WORKERS: Final = "recursant:workers"
# Channel: every report, as it is written to WORKERS.
WORKER_EVENTS: Final = "recursant:workers:events"
