"""The same requests to real vLLM and to the simulated worker, and what of the answers is compared."""

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from harness.programs import Program
from prometheus_client.parser import text_string_to_metric_families
from vllm_rig import LOOKS, LOOPBACK, MAX_MODEL_LEN, MODEL, REQUEST_S, RUN_S, wait_until

from recursant.supervise.ports import free_ports

# How often an engine is looked at in the end.
MOST_LOOKS = 5_000
# What holds an engine.
Hold = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Engine:
    """One of the two."""

    name: str
    url: str

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        """POST a value as JSON, or bytes as they are."""
        content: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
        if isinstance(body, bytes):
            options.setdefault("headers", {"content-type": "application/json"})
        return httpx.post(self.url + path, **content, **options, timeout=REQUEST_S, trust_env=False)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, timeout=REQUEST_S, trust_env=False)

    def chunks(self, path: str, body: Mapping[str, Any]) -> list[Any]:
        """The parsed events of a stream, without its end mark."""
        answer = self.post(path, {**body, "stream": True})
        assert answer.status_code == 200, answer.text
        data = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
        return [json.loads(item) for item in data if item != "[DONE]"]

    def families(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Type and labels of every metric of vLLM's, by name; without when they were created."""
        found: dict[str, tuple[str, tuple[str, ...]]] = {}
        for family in text_string_to_metric_families(self.get("/metrics").text):
            if family.name.startswith("vllm:") and not family.name.endswith("_created"):
                labels = {label for sample in family.samples for label in sample.labels} - {"le"}
                found[family.name] = (family.type, tuple(sorted(labels)))
        return found

    def answers_up_to(self, *tokens: int) -> list[int]:
        """How many requests have ended with an answer of up to so many tokens: bounds of vLLM's histogram."""
        found = dict.fromkeys(tokens, 0)
        for family in text_string_to_metric_families(self.get("/metrics").text):
            if family.name == "vllm:request_generation_tokens":
                for sample in family.samples:
                    bound = float(sample.labels.get("le", "inf"))
                    if sample.name.endswith("_bucket") and bound in found:
                        found[int(bound)] += int(sample.value)
        return list(found.values())

    def load(self) -> int:
        """Requests that its HTTP server has. Those that were cut may count on: compare it with an earlier look."""
        path, name = ("/sim/state", "in_flight") if self.name == "sim" else ("/load", "server_load")
        load: int = self.get(path).json()[name]
        return load

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Hold a simulated engine between two steps."""
        self.post("/sim/faults", {"kind": "freeze"}).raise_for_status()
        try:
            yield
        finally:
            httpx.delete(f"{self.url}/sim/faults", timeout=REQUEST_S, trust_env=False).raise_for_status()

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        families = text_string_to_metric_families(self.get("/metrics").text)
        return sum(sample.value for family in families for sample in family.samples if sample.name == name)


class Ends:
    """How many requests have ended since it was made, by the length of their answers.

    The engine itself says who has ended, by its histogram of lengths: the way of an answer to us takes its own time.

    Args:
        engine: one of the two.
        bounds: of the histogram; what is longer than the last is not counted, nor up to the first, as probes are.
    """

    def __init__(self, engine: Engine, *bounds: int) -> None:
        self._engine = engine
        self._bounds = bounds
        self._before = engine.answers_up_to(*bounds)

    def now(self) -> tuple[int, ...]:
        """One number for each two neighbouring bounds."""
        counts = self._engine.answers_up_to(*self._bounds)
        ended = [count - base for count, base in zip(counts, self._before, strict=True)]
        return tuple(longer - here for here, longer in itertools.pairwise(ended))

    def watch(self, hold: Hold, wanted: int) -> Sequence[tuple[int, ...]]:
        """Let an engine go by little steps, and look, until so many have ended.

        Who takes streams in the same process takes the time that the looks need: ask for whole answers.
        """
        seen: list[tuple[int, ...]] = []
        while len(seen) < MOST_LOOKS and (not seen or sum(seen[-1]) < wanted):
            time.sleep(RUN_S)
            with hold():
                for _ in range(LOOKS):
                    # Its server may still be at what the engine has made.
                    seen.append(self.now())
                    time.sleep(RUN_S)
        return seen


def start_sim(directory: Path, *arguments: str) -> tuple[Program, Engine]:
    """A simulated worker like the real ones, with these further options."""
    port = free_ports(LOOPBACK, 1)[0]
    options = ("--port", str(port), "--model", MODEL, "--profile", "tiny", "--max-model-len", str(MAX_MODEL_LEN))
    program = Program(directory, "sim", ["sim", *options, *arguments])
    engine = Engine("sim", f"http://{LOOPBACK}:{port}")
    wait_until(lambda: engine.get("/health").status_code == 200, what="the simulated worker is healthy")
    return program, engine


def shape(value: Any) -> Any:
    """A JSON value's form: keys and types, of a list the first entry's."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    if isinstance(value, bool) or value is None:
        return value
    return "number" if isinstance(value, int | float) else "text"
