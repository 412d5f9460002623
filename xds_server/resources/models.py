"""`GET /v1/models` over the whole fleet, in OpenAI's form, as static answers (DESIGN §9)."""

import json
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote

from recursant import names
from recursant.fleet.worker import WorkerRecord
from xds_server.resources.offer import ready

_OWNER: Final = "recursant"
# The form wants a time of creation; a fixed one keeps the answer the same on every replica.
_CREATED: Final = 0


def model_cards(workers: Iterable[WorkerRecord]) -> dict[str, str]:
    """The JSON of each model that some ready worker serves, by name: models, LoRA adapters and "auto"."""
    lengths: dict[str, int | None] = {names.AUTO_MODEL: None}
    for worker in ready(workers):
        for model in worker.models:
            # What any worker that serves it takes: a shorter one is safe on all of them.
            known = [length for length in (lengths.get(model.name), model.max_model_len) if length is not None]
            lengths[model.name] = min(known, default=None)
        for adapter in worker.state.lora_adapters:
            lengths.setdefault(adapter, None)
    return {name: _card(name, lengths[name]) for name in sorted(lengths)}


def _card(name: str, max_model_len: int | None) -> str:
    card: dict[str, str | int] = {"id": name, "object": "model", "created": _CREATED, "owned_by": _OWNER}
    if max_model_len is not None:
        card["max_model_len"] = max_model_len
    return json.dumps(card, separators=(",", ":"))


def model_list(cards: Iterable[str]) -> str:
    """The JSON of the whole list."""
    return '{"object":"list","data":[' + ",".join(cards) + "]}"


def paths_of(name: str) -> list[str]:
    """The request paths that name a model: clients send the `/` in a name as it is, or escaped."""
    spellings = {quote(name, safe="/:@!$&'()*+,;=~"), quote(name, safe=""), quote(name, safe="").replace("%2F", "%2f")}
    return sorted(f"/v1/models/{spelling}" for spelling in spellings)
