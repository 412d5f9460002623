"""The fleets of the benchmarks: so many registered workers on few real sockets, and the process that beats for them.

    python -m bench.fleets REDIS_URL WORKERS PORT

Beats come at a modest rate, every ten seconds for each worker: what they cost is measured on its own and taken off
what requests cost.
"""

import asyncio
import json
import sys

import uvloop

from bench.http_backend import addresses
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from recursant.store.exchange import StoreError
from recursant.store.workers import WorkerStore
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState

FAMILY = "bench"
MODEL = "bench/Bench-7B"
BEAT_S = 10.0
_RETRY_S = 0.1


def state(index: int, address: str) -> WorkerState:
    """A worker that knows everything about itself and has room for whatever comes."""
    return WorkerState(
        id=f"worker-{index:04}",
        address=address,
        phase=WorkerPhase.WORKER_PHASE_READY,
        incarnation="bench",
        report_interval_ms=round(BEAT_S * 1_000),
        models=[{"name": MODEL, "family": FAMILY, "max_model_len": 1_000_000}],
        running_requests=index % 3,
        waiting_tokens=0,
        queue_wait_ms=0.0,
        token_rate=900.0,
        peak_token_rate=1_000.0 + index % 7,
        free_vram_mb=40_000,
        total_vram_mb=80_000,
        kv_cache_usage=0.1,
        kv_blocks_total=1_000_000,
        kv_blocks_free=900_000,
        kv_block_tokens=16,
        bandwidth_used_mb_s=500_000.0,
        bandwidth_total_mb_s=2_000_000.0,
        capacity_tokens=100_000,
        max_num_seqs=256,
        engine="bench",
    )


def states(workers: int, port: int) -> list[WorkerState]:
    return [state(index, f"{address}:{port}") for index, address in enumerate(addresses(workers))]


def records(workers: int, port: int) -> list[WorkerRecord]:
    """The same fleet as the control plane knows it."""
    return [
        WorkerRecord(each.id, WorkerStatus.READY, each.address, (Model(MODEL, FAMILY, 1_000_000),), each, 0.0)
        for each in states(workers, port)
    ]


async def publish(url: str, workers: int, port: int) -> None:
    """Beat for the whole fleet until the process is ended."""
    store = WorkerStore(url)
    fleet = states(workers, port)
    first = True
    while True:
        for each in fleet:
            each.sequence += 1
            await _told(store, each)
            if not first:
                await asyncio.sleep(BEAT_S / workers)
        if first:
            print(json.dumps("ready"), flush=True)
            first = False


async def _told(store: WorkerStore, state: WorkerState) -> None:
    """Publish, again and again if need be: on a busy machine Redis answers late at times."""
    while True:
        try:
            return await store.publish(state)
        except StoreError:
            await asyncio.sleep(_RETRY_S)


if __name__ == "__main__":
    uvloop.run(publish(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
