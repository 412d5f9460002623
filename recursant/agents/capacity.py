"""Can anybody serve a policy (SPEC A4)? Pure: the fleet in, what is missing out."""

from collections.abc import Iterable

from recursant.agents.policy import AgentPolicy
from recursant.fleet.families import FamilyResolver
from recursant.fleet.worker import WorkerRecord, WorkerStatus


def missing_for(policy: AgentPolicy, workers: Iterable[WorkerRecord], families: FamilyResolver) -> str | None:
    """Why no worker can serve the policy now, in words; None where one can.

    What a worker does not know of itself does not speak against it, as when requests are routed.

    Args:
        policy: the one to be served.
        workers: the fleet.
        families: names families with the policy in force, whose own family may be a new word.
    """
    found = [
        worker
        for worker in workers
        if worker.status is WorkerStatus.READY and (not worker.state.exclusive or worker.worker_id in policy.workers)
    ]
    if not found:
        return "no worker is ready for this agent"
    found = [worker for worker in found if _serves(worker, policy, families)]
    if not found:
        wanted = f"the model {policy.model!r}" if policy.model else f"the family {policy.model_family!r}"
        return f"no ready worker serves {wanted}"
    vram = [worker.state.free_vram_mb for worker in found if worker.state.HasField("free_vram_mb")]
    if len(vram) == len(found) and max(vram) < policy.min_vram_mb:
        return f"min_vram_mb is {policy.min_vram_mb}, and the most that any of its workers has free is {max(vram)}"
    return None


def _serves(worker: WorkerRecord, policy: AgentPolicy, families: FamilyResolver) -> bool:
    if policy.model is not None:
        return policy.model in worker.state.lora_adapters or any(model.name == policy.model for model in worker.models)
    if policy.model_family is None:
        return True
    return any(
        policy.model_family in (model.family, families.family_of(model.name) if not model.family else "")
        for model in worker.models
    )
