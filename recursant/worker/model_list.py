"""The models that a vLLM lists (`GET /v1/models`), and the families that its operators mean. Pure."""

from dataclasses import dataclass

from recursant.config.model import StaticWorker
from recursant.fleet.families import FamilyResolver
from recursant.store.codec import is_usable_name
from recursant.v1.worker_state_pb2 import WorkerState


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One entry of the list.

    Attributes:
        name: as requests use it.
        adapter: it is a LoRA adapter of another entry.
        max_model_len: prompt and output together, in tokens.
    """

    name: str
    adapter: bool = False
    max_model_len: int | None = None


def parse_model_list(body: object) -> list[ListedModel]:
    """The entries of a parsed answer.

    Raises:
        ValueError: it is no list of models.
    """
    entries = body.get("data") if isinstance(body, dict) else None
    if not isinstance(entries, list):
        raise ValueError('/v1/models answered no list under "data"')
    models = []
    for entry in entries:
        name = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise ValueError('/v1/models answered an entry without "id"')
        length = entry.get("max_model_len")
        models.append(
            ListedModel(
                name,
                adapter=entry.get("parent") is not None,
                max_model_len=length if isinstance(length, int) and 0 < length < 1 << 32 else None,
            )
        )
    return models


def declared_models(worker: StaticWorker) -> list[ListedModel]:
    """The configured models of a worker, for one that does not let itself be asked."""
    return [ListedModel(model if isinstance(model, str) else model.name) for model in worker.models]


def fill_models(state: WorkerState, listed: list[ListedModel], worker: StaticWorker, families: FamilyResolver) -> None:
    """Write the models and adapters into `state`, with the family where the name alone does not tell it."""
    declared = {model.name: model.family for model in worker.models if not isinstance(model, str) and model.family}
    meant = {
        (None if isinstance(model, str) else model.family)
        or families.family_of(model if isinstance(model, str) else model.name)
        for model in worker.models
    }
    # A worker whose operators name one family serves that, whatever its vLLM calls the model.
    only = meant.pop() if len(meant) == 1 else None
    for model in listed:
        if model.adapter:
            # Whoever loads adapters names them; one that cannot be reported must not keep the worker from it.
            if is_usable_name(model.name):
                state.lora_adapters.append(model.name)
            continue
        family = declared.get(model.name) or families.family_of(model.name) or only or ""
        loaded = state.models.add(name=model.name, family=family)
        if model.max_model_len is not None:
            loaded.max_model_len = model.max_model_len
