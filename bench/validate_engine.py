"""The engine model against a real vLLM server on this machine's CPU (docs/calibration.md).

    make test-vllm ARGS='--collect-only'          # once: installs vLLM into .venv-vllm
    PYTHONPATH=tests/e2e python -m bench.validate_engine [--seconds S] [--rate R]

Builds a Llama of 8 layers with random weights, measures single prefills and decode steps, fits an engine profile to
them (the fastest of some tries each), and compares: the same Poisson load through the server and through the engine
model in virtual time. Writes bench/out/validate_engine.json. Nothing else should run: what it measures is this CPU.
"""

import argparse
import asyncio
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import numpy as np

from recursant.sim.engine import Engine
from recursant.sim.engine_profile import EngineProfile
from recursant.sim.fleet.results import percentile
from recursant.sim.sequence import EngineRequest
from tests.real_vllm.vllm_rig import BLOCK_TOKENS, HOME, VllmServer, completion, token_prompt

OUT: Final = Path(__file__).parent / "out"
STEP_TOKENS: Final = 512
SEQUENCES: Final = 32
CONTEXT: Final = 2_048
KV_BLOCKS: Final = 1_024
# Of the model; enough that a prefill of 1,000 tokens takes longer than what vLLM adds to every step.
HIDDEN, LAYERS, HEADS = 512, 8, 8
PREFILLS: Final = (16, 64, 128, 256, 384, 500)
BATCHES: Final = (1, 2, 4, 8, 16)
CONTEXTS: Final = (64, 480)
REPEATS: Final = 5
_MAKE: Final = (
    "import sys; sys.path.insert(0, {tests!r}); import make_model as m; from pathlib import Path; "
    "m.HIDDEN, m.LAYERS, m.HEADS = {hidden}, {layers}, {heads}; m.main(Path({model!r}), Path({adapter!r}))"
)


@dataclass(frozen=True, slots=True)
class Timed:
    """One request: seconds from when it was sent to its first token, and to its end."""

    first_s: float
    end_s: float


async def ask(client: httpx.AsyncClient, prompt: Sequence[int], output: int) -> Timed:
    """Send one streamed completion and time its tokens."""
    body = {**completion(list(prompt), max_tokens=output), "stream": True}
    began = time.perf_counter()
    first = 0.0
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not first and line.startswith("data: {"):
                first = time.perf_counter()
    return Timed(first - began, time.perf_counter() - began)


async def measured(client: httpx.AsyncClient) -> tuple[dict[int, float], dict[tuple[int, int], float]]:
    """Seconds of a prefill by its length, and of a decode step by (sequences, context)."""
    prompts = iter(range(10_000))
    await asyncio.gather(*(ask(client, token_prompt(100, next(prompts)), 20) for _ in range(8)))
    prefills = {}
    for tokens in PREFILLS:
        timed = [await ask(client, token_prompt(tokens, next(prompts)), 2) for _ in range(REPEATS)]
        prefills[tokens] = min([each.first_s for each in timed])
    decodes = {}
    for batch in BATCHES:
        for context in CONTEXTS:
            # The server may put several tokens into one message: so by the time that 60 tokens take longer than 4.
            took: dict[int, list[float]] = {4: [], 60: []}
            for output, found in took.items():
                for _ in range(REPEATS):
                    asked = (
                        ask(client, token_prompt(context // batch + 16, next(prompts)), output) for _ in range(batch)
                    )
                    found.append(max(each.end_s for each in await asyncio.gather(*asked)))
            decodes[batch, context // batch + 48] = (min(took[60]) - min(took[4])) / 56
    return prefills, decodes


def fitted(prefills: dict[int, float], decodes: dict[tuple[int, int], float]) -> EngineProfile:
    """The profile: least squares of the relative error, every coefficient at least 0."""
    # time = launch + tokens x a + pairs x b + sequences x c + context x d
    rows, seconds = [], []
    for tokens, took in prefills.items():
        rows.append([1.0, tokens, tokens * (tokens + 1) / 2, 1.0, 0.0])
        seconds.append(took)
    for (batch, context), took in decodes.items():
        rows.append([1.0, batch, 0.0, batch, batch * context])
        seconds.append(took)
    scaled = np.array(rows) / np.array(seconds)[:, None]
    kept = list(range(5))
    while True:
        found, *_ = np.linalg.lstsq(scaled[:, kept], np.ones(len(seconds)), rcond=None)
        if (found >= 0).all():
            break
        kept = [index for index, value in zip(kept, found, strict=True) if value > 0]
    launch, token, pair, sequence, read = (
        float(dict(zip(kept, found, strict=True)).get(index, 0.0)) for index in range(5)
    )
    kv_bytes = 2 * LAYERS * HIDDEN * 4
    return EngineProfile(
        name="this-cpu",
        source="fitted by bench.validate_engine",
        token_times=((0, 0.0), (1, token), (STEP_TOKENS, token * STEP_TOKENS)),
        step_overhead_s=launch,
        sequence_time_s=sequence,
        attention_pair_s=pair,
        bandwidth_bytes_s=kv_bytes / max(read, 1e-12),
        kv_read_efficiency=1.0,
        weights_bytes=12 * HIDDEN * HIDDEN * LAYERS * 4,
        kv_bytes_per_token=kv_bytes,
        total_vram_mb=1_024,
        block_tokens=BLOCK_TOKENS,
        kv_blocks=KV_BLOCKS,
        max_model_len=CONTEXT,
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=STEP_TOKENS,
    )


Load = list[tuple[float, int, int]]


def load(rate: float, seconds: float) -> Load:
    """(seconds, prompt tokens, output tokens) of each request, by a seed."""
    draw = random.Random(0)
    found: Load = []
    at = draw.expovariate(rate)
    while at < seconds:
        prompt, output = round(draw.lognormvariate(5.0, 0.8)), round(draw.lognormvariate(3.2, 0.6))
        found.append((at, min(max(prompt, 8), 1_500), min(max(output, 4), 200)))
        at += draw.expovariate(rate)
    return found


async def served(client: httpx.AsyncClient, requests: Load) -> list[Timed]:
    """The load through the server, in real time."""
    began = time.perf_counter()

    async def one(number: int, at: float, prompt: int, output: int) -> Timed:
        await asyncio.sleep(max(0.0, at - (time.perf_counter() - began)))
        return await ask(client, token_prompt(prompt, 20_000 + number), output)

    return list(await asyncio.gather(*(one(number, *each) for number, each in enumerate(requests))))


def simulated(profile: EngineProfile, requests: Load) -> list[Timed]:
    """The load through the engine model, in virtual time."""
    engine = Engine(profile, prefix_caching=False)
    left = list(reversed(list(enumerate(requests))))
    now = 0.0
    sequences = {}

    def arrive(until: float) -> None:
        while left and left[-1][1][0] <= until:
            number, (at, prompt, output) = left.pop()
            sequences[number] = engine.add(EngineRequest(str(number), prompt, output), at)

    while left or engine.has_work:
        if not engine.has_work:
            now = max(now, left[-1][1][0])
        arrive(now)
        duration = engine.begin_step(now)
        if duration is not None:
            now += duration
            arrive(now)
            engine.end_step(now)
    found = []
    for number, (at, _, _) in enumerate(requests):
        first, finished = sequences[number].first_token or 0.0, sequences[number].finished or 0.0
        found.append(Timed(first - at, finished - at))
    return found


def compared(real: Sequence[Timed], model: Sequence[Timed]) -> dict[str, dict[str, float]]:
    """Percentiles in ms, of both, and the model's error."""
    rows = {}
    for name in ("first_s", "end_s"):
        both = [sorted(getattr(each, name) * 1_000 for each in those) for those in (real, model)]
        for share in (0.5, 0.9, 0.99):
            theirs, ours = (percentile(values, share) for values in both)
            rows[f"{name} p{share * 100:g}"] = {"vllm_ms": theirs, "model_ms": ours, "error": ours / theirs - 1}
    return rows


async def run(server: VllmServer, seconds: float, rate: float) -> dict[str, object]:
    """Everything, with what it finds on the screen."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=120.0, trust_env=False, limits=limits) as client:
        prefills, decodes = await measured(client)
        profile = fitted(prefills, decodes)
        errors = [
            abs(profile.step_overhead_s + profile.token_time(tokens) + profile.sequence_time_s
                + tokens * (tokens + 1) / 2 * profile.attention_pair_s - took) / took
            for tokens, took in prefills.items()
        ]  # fmt: skip
        errors += [
            abs(profile.step_overhead_s + profile.token_time(batch)
                + batch * (profile.sequence_time_s + context * profile.kv_read_s_per_token) - took) / took
            for (batch, context), took in decodes.items()
        ]  # fmt: skip
        for tokens, took in prefills.items():
            print(f"prefill of {tokens:4} tokens: {took * 1_000:7.1f} ms")
        for (batch, context), took in decodes.items():
            print(f"step of {batch:2} sequences of {context:3} tokens: {took * 1_000:7.1f} ms")
        mean = sum(errors) / len(errors)
        print(f"fit: mean error {mean:.1%}, worst {max(errors):.1%}")
        requests = load(rate, seconds)
        real = await served(client, requests)
    rows = compared(real, simulated(profile, requests))
    for name, row in rows.items():
        print(f"{name:12} vLLM {row['vllm_ms']:7.1f} ms, model {row['model_ms']:7.1f} ms, {row['error']:+.0%}")
    return {
        "requests": len(requests),
        "rate": rate,
        "fit_mean_error": mean,
        "fit_worst_error": max(errors),
        "load": rows,
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.validate_engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of load (60)")
    parser.add_argument("--rate", type=float, default=1.5, help="requests a second (1.5)")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        model = Path(directory) / "model"
        tests = str(Path(__file__).parents[1] / "tests/real_vllm")
        script = _MAKE.format(
            tests=tests, hidden=HIDDEN, layers=LAYERS, heads=HEADS, model=str(model), adapter=str(model / "adapter")
        )
        subprocess.run([str(HOME / "bin/python"), "-c", script], check=True)
        server = VllmServer(
            Path(directory),
            "validate",
            *("--max-num-batched-tokens", str(STEP_TOKENS), "--max-num-seqs", str(SEQUENCES)),
            *("--no-enable-prefix-caching", "--num-gpu-blocks-override", str(KV_BLOCKS)),
            model=model,
        )
        try:
            server.start().wait_ready()
            found = asyncio.run(run(server, options.seconds, options.rate))
        finally:
            server.close()
    (OUT / "validate_engine.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
