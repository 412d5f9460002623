"""CPU time of one whole decision: headers in, answer out, response headers in, answer out, counts released.

Everything that extproc does for a request but the transport. The baseline is a session that parses each message and
answers "continue": what is left is the price of deciding.
"""

import random
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from envoy.service.ext_proc.v3.external_processor_pb2 import HttpHeaders, ProcessingRequest

from extproc import messages
from extproc.desk import Desk
from extproc.gateway import Gateway
from extproc.metrics import Recorder
from extproc.session import RequestSession
from recursant.admission.queue import HoldQueue
from recursant.config.model import Config
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from recursant.v1.worker_state_pb2 import WorkerState

WORKERS = (10, 100, 1_000)
LOOPS = 9
REQUESTS = 1_000
_ENDPOINT = re.compile(rb"10\.0\.\d+\.\d+:8000")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times are CPU microseconds per request, median over the loops."""

    case: str
    workers: int
    cpu_us: float
    over_noop_us: float


def _headers(target: HttpHeaders, headers: dict[str, str]) -> None:
    for key, value in headers.items():
        header = target.headers.headers.add()
        header.key, header.raw_value = key, value.encode()


def _request() -> bytes:
    message = ProcessingRequest()
    _headers(
        message.request_headers,
        {
            ":method": "POST",
            ":path": "/v1/chat/completions",
            ":authority": "localhost:8000",
            ":scheme": "http",
            "accept": "*/*",
            "content-type": "application/json",
            "content-length": "1200",
            "user-agent": "bench",
            "x-agent-id": "chat-web",
            "x-forwarded-proto": "http",
            "x-request-id": "2f1e7a52-7d5c-4a3e-9d0e-1f6b2a9c0d11",
        },
    )
    data: bytes = message.SerializeToString()
    return data


def _response(endpoint: str) -> bytes:
    message = ProcessingRequest()
    _headers(message.response_headers, {":status": "200", "content-type": "application/json", "server": "uvicorn"})
    message.attributes["envoy.filters.http.ext_proc"].fields["upstream.address"].string_value = endpoint
    data: bytes = message.SerializeToString()
    return data


def _endpoint(number: int) -> str:
    return f"10.0.{number // 250}.{number % 250}:8000"


def _gateway(workers: int) -> Gateway:
    table = FleetTable()
    rng = random.Random(workers)
    model = Model("Qwen/Qwen2.5-7B-Instruct", "qwen", 32_768)
    for number in range(workers):
        state = WorkerState(
            id=f"w{number}",
            incarnation="bench",
            running_requests=rng.randrange(64),
            waiting_tokens=rng.randrange(500),
            peak_token_rate=rng.choice((1_000.0, 2_500.0)),
            max_num_seqs=256,
            free_vram_mb=rng.randrange(4_000, 40_000),
        )
        table.upsert(WorkerRecord(state.id, WorkerStatus.READY, _endpoint(number), (model,), state, 0.0))
    agent = {
        "agent_id": "chat-web",
        "model_family": "qwen",
        "min_vram_mb": 3_200,
        "latency_sla_ms": 800,
        "priority": 10,
    }
    return Gateway(
        config=Config.model_validate({"agents": [agent]}),
        table=table,
        recorder=Recorder(),
        clock=time.perf_counter,
        rng=rng,
    )


def _cpu_us(once: Callable[[], None]) -> float:
    began = time.process_time()
    for _ in range(REQUESTS):
        once()
    return (time.process_time() - began) / REQUESTS * 1e6


def measure() -> list[Row]:
    """Measure all cases in turn, `LOOPS` times over, and give the medians."""
    request = _request()
    # The worker that was picked answers.
    responses = {_endpoint(number).encode(): _response(_endpoint(number)) for number in range(max(WORKERS))}
    [response, *_] = responses.values()

    def noop() -> None:
        messages.go_on(messages.parse(request))
        messages.go_on(messages.parse(response))

    def decide_with(gateway: Gateway) -> Callable[[], None]:
        desk = Desk(gateway, HoldQueue(), lambda: None)

        def decide() -> None:
            session = RequestSession(gateway, desk, print)
            answer = session.receive(request) or b""
            session.receive(responses[_ENDPOINT.findall(answer)[0]])
            session.close()

        return decide

    cases: dict[tuple[str, int], Callable[[], None]] = {("no-op", 0): noop}
    for workers in WORKERS:
        cases["decision", workers] = decide_with(_gateway(workers))
    times: dict[tuple[str, int], list[float]] = {case: [] for case in cases}
    for loop in range(LOOPS + 1):
        for case, once in cases.items():
            taken = _cpu_us(once)
            if loop > 0:  # the first loop warms up
                times[case].append(taken)
    baseline = statistics.median(times["no-op", 0])
    return [
        Row(name, workers, round(statistics.median(taken), 1), round(statistics.median(taken) - baseline, 1))
        for (name, workers), taken in times.items()
    ]
