"""The names of everything that we keep in Redis (DESIGN §6)."""

from typing import Final

# Hash: worker id -> serialised WorkerState, its last report.
WORKERS: Final = "recursant:workers"
# Channel: every report, as it is written to WORKERS.
WORKER_EVENTS: Final = "recursant:workers:events"
# Set: ids of the workers that have a key of the next kind. Those without one have outlived it.
ISOLATED: Final = "recursant:isolation"
# A worker's isolation, or its release, as JSON; it expires when nothing is left of it.
ISOLATION_OF: Final = "recursant:isolation:"
# Hash: agent id -> serialised AgentPolicy, with its version and who set it when; deleted ones stay, marked.
AGENTS: Final = "recursant:agents"
# Channel: the id of every agent whose entry in AGENTS was written.
AGENT_EVENTS: Final = "recursant:agents:events"
# Hash: session -> where it was sent last, of those whose last request came in one stretch of time, which the end of the
# key numbers. It expires when the youngest of them may be forgotten.
SESSIONS_OF: Final = "recursant:session:"
# Channel: batches of what is written there, with who says it.
SESSION_EVENTS: Final = "recursant:session:events"
