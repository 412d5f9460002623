"""What is measured: kinds of request, servers, and the rows that come of them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench import grpc_go
from recursant.names import AGENT_ID

WORKERS = (10, 100, 1_000)
USUAL_WORKERS = 100

LEAN = "lean"
# `lean` with its hot path compiled.
COMPILED = "lean-compiled"
GRPCIO = "grpcio"
OURS = (LEAN, COMPILED, GRPCIO)
# The yardsticks: ext_proc servers that decide nothing.
NOOP = "noop-grpcio-aio"
NOOP_GO = grpc_go.SERVER
NOOPS = (NOOP, NOOP_GO)
# A router and nothing else; the backend without anything.
PLAIN = "envoy-only"
DIRECT = "direct"

# The agent whose requests are decided on their headers, as agents are by default, and the same with its body read.
HEADERS_AGENT = "chat"
BODY_AGENT = "reader"

# Clients: one that waits for each answer, a few, and as many as keep the machine busy.
FEW = (1, 4, 32)


@dataclass(frozen=True)
class Mode:
    """A kind of request.

    Attributes:
        prompt_bytes: of the prompt in its body.
        agent: who sends it.
        stream: the answer comes in several chunks, the latency is that of the first.
        connections: for one sample each: alone, perhaps a few, and last enough to keep the machine busy.
        requests: of a sample, for each of `connections`.
        workers: sizes of the fleet.
    """

    name: str
    prompt_bytes: int
    agent: str
    connections: tuple[int, ...] = (1, 32)
    requests: tuple[int, ...] = (400, 1_600)
    workers: tuple[int, ...] = (USUAL_WORKERS,)
    stream: bool = False

    @property
    def request(self) -> str:
        """The bytes of a request, as text."""
        prompt = ("the quick brown fox jumps over the lazy dog " * (self.prompt_bytes // 44 + 1))[: self.prompt_bytes]
        document = {"model": "auto", "max_tokens": 64, "messages": [{"role": "user", "content": prompt}]}
        body = json.dumps(document)
        stream = "x-bench-stream: 1\r\n" if self.stream else ""
        return (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\nuser-agent: bench\r\naccept: */*\r\n"
            f"authorization: Bearer {'x' * 40}\r\n{AGENT_ID}: {self.agent}\r\n{stream}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n{body}"
        )


MODES = (
    Mode("headers", 200, HEADERS_AGENT, connections=FEW, requests=(400, 800, 1_600), workers=WORKERS),
    Mode("body-1k", 1_024, BODY_AGENT, connections=FEW, requests=(400, 800, 1_600), workers=WORKERS),
    Mode("body-32k", 32 * 1_024, BODY_AGENT, requests=(200, 640)),
    Mode("body-1m", 2**20, BODY_AGENT, connections=(1, 8), requests=(24, 64)),
    Mode("stream", 200, HEADERS_AGENT, requests=(150, 960), stream=True),
)


@dataclass(frozen=True, order=True)
class Case:
    """A row of the table."""

    mode: str
    workers: int
    connections: int
    server: str


def cases_of(mode: Mode, transports: Sequence[str], noops: Sequence[str]) -> list[Case]:
    """The rows of a mode; the yardsticks know no fleet, so they have a row at the usual size alone.

    Args:
        transports: those of `OURS` that run.
        noops: those of `NOOPS` that run.
    """
    found = []
    for connections in mode.connections:
        for workers in mode.workers:
            servers = [*transports, PLAIN]
            if workers == USUAL_WORKERS:
                servers += [*noops, DIRECT]
            found += [Case(mode.name, workers, connections, server) for server in servers]
    return found


def rotated(cases: Iterable[Case], turn: int) -> list[Case]:
    """Another order in each round, neighbours kept together: what is compared runs within seconds."""
    groups: dict[tuple[str, int, int], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.mode, case.workers, case.connections), []).append(case)
    found = []
    for group in groups.values():
        at = turn % len(group)
        found += group[at:] + group[:at]
    return found
