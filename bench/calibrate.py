"""Fit the coefficients of `recursant.sim.hardware` to measured times: `python -m bench.calibrate --traces DIR`.

DIR holds compute profiles of microsoft/vidur (`vidur_mlp_DEVICE_PUBLISHER_MODEL.csv`, `.gz` or not): times of each
operator of a layer, in ms, by tokens and tensor parallelism. Printed are the coefficients, which stand in
`recursant.sim.hardware`, how far the formula is off, and how far it is off where it was not fitted.
"""

import argparse
import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from recursant.sim.hardware import (
    A100,
    FITS,
    H100,
    LLAMA_2_7B,
    LLAMA_2_70B,
    LLAMA_3_8B,
    Device,
    ModelShape,
    StepFit,
    layer_seconds,
)
from recursant.sim.workloads.trace_file import TraceError, numbered_lines

# Of the coefficients, or of what they miss.
Logs = NDArray[np.float64]

# Of a layer; `emb` runs once for the whole model and is below 0.2 % of a step.
OPERATORS: Final = (
    "input_layernorm",
    "attn_pre_proj",
    "attn_rope",
    "attn_post_proj",
    "post_attention_layernorm",
    "mlp_up_proj",
    "mlp_act",
    "mlp_down_proj",
    "add",
)
# Evenly in the logarithm, so that decode steps count as much as long prefills.
TOKENS: Final = (1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072, 4_096)
DEGREES: Final = (1, 2, 4, 8)
_ROUNDS: Final = 60


@dataclass(frozen=True)
class Source:
    """One profile file: whose times it has."""

    stem: str
    device: Device
    shape: ModelShape

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.device.name} {self.shape.name}"


SOURCES: Final = (
    Source("vidur_mlp_a100_meta-llama_meta-llama-3-8b.csv", A100, LLAMA_3_8B),
    Source("vidur_mlp_h100_meta-llama_llama-2-7b-hf.csv", H100, LLAMA_2_7B),
    Source("vidur_mlp_h100_meta-llama_llama-2-70b-hf.csv", H100, LLAMA_2_70B),
)


@dataclass(frozen=True)
class Point:
    """A measured layer: seconds for so many tokens at a degree of tensor parallelism."""

    source: Source
    tp: int
    tokens: int
    seconds: float


def read_points(folder: Path, source: Source) -> list[Point]:
    """The measured points of one file at TOKENS and DEGREES.

    Raises:
        TraceError: the file is not there or not in the format.
    """
    path = next((path for path in (folder / source.stem, folder / f"{source.stem}.gz") if path.is_file()), None)
    if path is None:
        raise TraceError(folder / source.stem, None, "not there, neither as .gz")
    lines = list(numbered_lines(path))
    points = []
    for (number, _), row in zip(lines[1:], csv.DictReader(text for _, text in lines), strict=True):
        try:
            tokens, tp = int(row["num_tokens"]), int(row["num_tensor_parallel_workers"])
            # In a file of several degrees, an operator that one of them lacks has an empty field.
            layer_ms = sum(float(row[f"time_stats.{operator}.median"] or 0) for operator in OPERATORS)
        except (KeyError, ValueError, TypeError) as error:
            raise TraceError(path, number, f"not a line of a compute profile: {error!r}") from None
        if tokens in TOKENS and tp in DEGREES:
            points.append(Point(source, tp, tokens, layer_ms / 1_000))
    return points


def predicted(fit: StepFit, point: Point) -> float:
    """What the formula says, in seconds."""
    return layer_seconds(fit, point.source.device, point.source.shape, point.tokens, point.tp)


def fit_points(points: Sequence[Point], start: StepFit) -> StepFit:
    """The coefficients with the least squares of the logarithm of predicted / measured (Gauss-Newton, damped)."""
    values = np.log([start.weight_read, start.matmul, start.activation, start.layer_overhead_s])

    def made(logs: Logs) -> StepFit:
        return StepFit(start.source, *(exp(value) for value in logs))

    def misses(logs: Logs) -> Logs:
        fit = made(logs)
        return np.array([log(predicted(fit, point) / point.seconds) for point in points])

    nudge = 1e-5
    for _ in range(_ROUNDS):
        now = misses(values)
        slopes = np.column_stack([(misses(values + nudge * unit) - now) / nudge for unit in np.eye(len(values))])
        change = np.linalg.lstsq(slopes, -now, rcond=None)[0]
        values = values + np.clip(change, -0.3, 0.3)
    return made(values)


def errors_of(fit: StepFit, points: Sequence[Point]) -> tuple[float, float, float]:
    """Mean, 90th percentile and largest of |predicted / measured - 1|."""
    misses = sorted(abs(predicted(fit, point) / point.seconds - 1) for point in points)
    return sum(misses) / len(misses), misses[int(len(misses) * 0.9)], misses[-1]


def show_fit(name: str, fit: StepFit) -> None:
    """One device's coefficients."""
    print(
        f"{name}: weight_read={fit.weight_read:.3f} matmul={fit.matmul:.3f} activation={fit.activation:.3f} "
        f"layer_overhead_s={fit.layer_overhead_s * 1e6:.1f}e-6"
    )


def show_errors(title: str, fit: StepFit, points: Sequence[Point]) -> None:
    """How far a fit is off on these points."""
    mean, p90, worst = errors_of(fit, points)
    print(f"  {title:<60} mean {mean:6.1%}  p90 {p90:6.1%}  worst {worst:6.1%}  ({len(points)} points)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Fit, check and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.calibrate", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--traces", type=Path, required=True, metavar="DIR", help="the folder with the profiles")
    folder = parser.parse_args(arguments).traces
    try:
        points: Mapping[str, list[Point]] = {source.title: read_points(folder, source) for source in SOURCES}
    except TraceError as error:
        print(f"calibrate: {error}", file=sys.stderr)
        return 1
    by_device = {
        device.name: [point for each in points.values() for point in each if point.source.device is device]
        for device in (A100, H100)
    }
    fits = {name: fit_points(each, FITS[name]) for name, each in by_device.items()}
    print("fitted")
    for name, fit in fits.items():
        show_fit(name, fit)
    print("in recursant.sim.hardware")
    for name, fit in FITS.items():
        show_fit(name, fit)
    print("errors of those in recursant.sim.hardware, per layer, where they were fitted")
    for title, each in points.items():
        for tp in DEGREES:
            chosen = [point for point in each if point.tp == tp]
            show_errors(f"{title}, tensor parallel {tp}", FITS[each[0].source.device.name], chosen)
    print("errors where nothing was fitted")
    seven = points[SOURCES[1].title]
    seventy = points[SOURCES[2].title]
    show_errors("a100 llama-3-8b's coefficients on h100 llama-2-7b", fits["a100"], seven)
    show_errors("a100 llama-3-8b's coefficients on h100 llama-2-70b", fits["a100"], seventy)
    only_seven = fit_points(seven, FITS["h100"])
    show_errors("h100 llama-2-7b's coefficients on h100 llama-2-70b", only_seven, seventy)
    single = fit_points([point for point in by_device["a100"] if point.tp == 1], FITS["a100"])
    show_errors(
        "a100 at tensor parallel 1 on 2, 4 and 8", single, [point for point in by_device["a100"] if point.tp > 1]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
