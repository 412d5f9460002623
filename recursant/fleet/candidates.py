"""Who may serve a family or a model, before any limit of a request is looked at."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from recursant.fleet.facts import UNKNOWN, Facts, Rows
from recursant.fleet.worker import WorkerRecord, WorkerStatus


@dataclass(frozen=True, slots=True)
class CandidateSet:
    """The usable workers that serve one family or model, before any limit of a request is looked at.

    Attributes:
        rows: their rows in the table.
        models: the concrete model of each, in the order of `rows`; "" where any will do.
        max_model_len: prompt and output together, in tokens, of each; NaN where unknown.
        names: every name that requests may use there: models of the family, and LoRA adapters.
        mixed: the workers differ in their concrete model.
        model_numbers: of the model of each; equal ones are the same model.
        places: of each row, its place in all of these.
    """

    rows: Rows
    models: tuple[str, ...]
    max_model_len: Facts
    names: frozenset[str]
    mixed: bool
    model_numbers: Rows
    places: Mapping[int, int]


def candidate_set(
    records: Iterable[tuple[int, WorkerRecord]], family: str, model: str, exclusive: frozenset[str]
) -> CandidateSet:
    """The usable ones of these workers, each with its row; see `FleetTable.candidates`."""
    rows: list[int] = []
    models: list[str] = []
    lengths: list[float] = []
    names: set[str] = set()
    for row, record in records:
        if record.status is not WorkerStatus.READY or record.endpoint is None:
            continue
        if record.state.exclusive and record.worker_id not in exclusive:
            continue
        served = serves(record, family, model)
        if served is None:
            continue
        rows.append(row)
        models.append(served[0])
        lengths.append(served[1])
        names.update(_names(record, family))
    return CandidateSet(
        np.array(rows, dtype=np.intp),
        tuple(models),
        np.array(lengths, dtype=np.float64),
        frozenset(names),
        mixed=len(set(models)) > 1,
        model_numbers=np.unique(models, return_inverse=True)[1],
        places={row: place for place, row in enumerate(rows)},
    )


def serves(record: WorkerRecord, family: str, model: str) -> tuple[str, float] | None:
    """The concrete model and its length for this family or name; None where the worker does not serve it."""
    if model:
        for served in record.models:
            if served.name == model:
                return model, _length(served.max_model_len)
        if model in record.state.lora_adapters:
            lengths = [_length(served.max_model_len) for served in record.models]
            return model, max(lengths, default=UNKNOWN)
        return None
    for served in record.models:
        if not family or served.family == family:
            return served.name, _length(served.max_model_len)
    return None if family else ("", UNKNOWN)


def _names(record: WorkerRecord, family: str) -> set[str]:
    names = {model.name for model in record.models if not family or model.family == family}
    names.update(record.state.lora_adapters)
    return names


def _length(tokens: int | None) -> float:
    return UNKNOWN if tokens is None else float(tokens)
