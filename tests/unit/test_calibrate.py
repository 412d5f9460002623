"""The fitting script: from a made-up profile it finds the coefficients that made it."""

import csv
import gzip
from pathlib import Path

import pytest

from bench.calibrate import DEGREES, OPERATORS, SOURCES, TOKENS, errors_of, fit_points, main, read_points
from recursant.sim.hardware import FITS, StepFit, layer_seconds

TRUTH = StepFit("made up", weight_read=0.6, matmul=0.5, activation=0.3, layer_overhead_s=50e-6)


def write_profiles(folder: Path) -> None:
    """Files in vidur's format, in which each layer takes what the formula says."""
    for index, source in enumerate(SOURCES):
        name = f"{source.stem}.gz" if index else source.stem
        with (gzip.open if index else open)(folder / name, "wt", newline="") as file:
            columns = [f"time_stats.{operator}.median" for operator in ("emb", *OPERATORS)]
            table = csv.writer(file)
            table.writerow([*columns, "num_tokens", "num_tensor_parallel_workers"])
            for tp in DEGREES:
                for tokens in (*TOKENS, 32_768):
                    layer_ms = 1_000 * layer_seconds(TRUTH, source.device, source.shape, tokens, tp)
                    times: list[object] = [layer_ms / (len(OPERATORS) - 1)] * (len(OPERATORS) - 1)
                    # An operator that was not measured is an empty field.
                    table.writerow([9.9, *times, "", tokens, tp])


def test_it_finds_the_coefficients(tmp_path: Path) -> None:
    write_profiles(tmp_path)
    points = read_points(tmp_path, SOURCES[0])
    assert len(points) == len(TOKENS) * len(DEGREES)
    fit = fit_points(points, FITS["a100"])
    assert fit.weight_read == pytest.approx(TRUTH.weight_read, rel=1e-3)
    assert fit.matmul == pytest.approx(TRUTH.matmul, rel=1e-3)
    assert fit.activation == pytest.approx(TRUTH.activation, rel=1e-3)
    assert fit.layer_overhead_s == pytest.approx(TRUTH.layer_overhead_s, rel=1e-3)
    assert errors_of(fit, points)[2] < 1e-3


def test_it_prints_both_and_the_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_profiles(tmp_path)
    assert main(["--traces", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "a100: weight_read=0.600 matmul=0.500 activation=0.300 layer_overhead_s=50.0e-6" in out
    assert f"a100: weight_read={FITS['a100'].weight_read:.3f}" in out
    assert "errors where nothing was fitted" in out


def test_what_is_not_there_or_not_a_profile_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--traces", str(tmp_path)]) == 1
    assert SOURCES[0].stem in capsys.readouterr().err
    write_profiles(tmp_path)
    (tmp_path / SOURCES[0].stem).write_text("num_tokens,num_tensor_parallel_workers\n1,1\n")
    assert main(["--traces", str(tmp_path)]) == 1
    assert f"{tmp_path / SOURCES[0].stem}:2: " in capsys.readouterr().err
