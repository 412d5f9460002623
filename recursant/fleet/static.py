"""The workers that the configuration names, as far as the configuration knows them."""

from recursant.config.model import Config, StaticWorker
from recursant.fleet.address import join_address
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState


def static_states(config: Config) -> list[WorkerState]:
    """What the configuration says of each of its workers, in its order; of two with one id, the last."""
    return list({worker.worker_id: static_state(worker) for worker in config.workers}.values())


def static_state(worker: StaticWorker) -> WorkerState:
    """A worker's state before anybody has asked it: no fact but what the configuration declares."""
    state = WorkerState(
        id=worker.worker_id,
        address=join_address(worker.host, worker.port),
        phase=WorkerPhase.WORKER_PHASE_READY,
        report_interval_ms=worker.scrape_interval_ms,
    )
    for model in worker.models:
        if isinstance(model, str):
            state.models.add(name=model)
        else:
            state.models.add(name=model.name, family=model.family or "")
    declare(worker, state)
    return state


def declare(worker: StaticWorker, state: WorkerState) -> None:
    """Put into `state` what only the operators can know."""
    state.exclusive = worker.exclusive
    if worker.capacity_tokens is not None:
        state.capacity_tokens = worker.capacity_tokens
