"""docs/calibration.md has the coefficients and the profiles as they are in the code."""

import re
from pathlib import Path

import pytest

from recursant.sim.engine_profile import EngineProfile
from recursant.sim.hardware import FITS
from recursant.sizing.estimate import unloaded_first_token_s
from recursant.sizing.kinds import kinds_named

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "calibration.md").read_text()


def cells(first: str) -> list[str]:
    """The other cells of the table's row that begins with this."""
    [line] = re.findall(rf"^\| {re.escape(first)}(?: \(measured\))? \|(.*)\|$", TEXT, re.MULTILINE)
    return [cell.strip() for cell in line.split("|")]


@pytest.mark.parametrize("profile", kinds_named([]), ids=lambda profile: profile.name)
def test_every_profile_is_listed_with_its_numbers(profile: EngineProfile) -> None:
    one_token_s = profile.step_overhead_s + profile.token_time(1) + profile.sequence_time_s
    assert cells(f"`{profile.name}`") == [
        str(profile.devices),
        f"{profile.weights_bytes / 1e9:.1f}",
        f"{profile.kv_tokens:,}",
        f"{profile.max_model_len:,}",
        f"{1_000 * one_token_s:.1f}",
        f"{1_000 * unloaded_first_token_s(profile, 2_048):.0f}",
        f"{profile.peak_token_rate:,.0f}",
    ]


@pytest.mark.parametrize(("device", "first"), [("a100", "A100 SXM 80 GB"), ("h100", "H100 SXM 80 GB")])
def test_the_coefficients_are_those_in_use(device: str, first: str) -> None:
    fit = FITS[device]
    assert cells(first)[2:] == [
        f"{fit.weight_read:.3f}",
        f"{fit.matmul:.3f}",
        f"{fit.activation:.3f}",
        f"{fit.layer_overhead_s * 1e6:.1f} us",
    ]


def test_links_lead_somewhere() -> None:
    for name in ("calibration.md", "planning.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", (DOCS / name).read_text()):
            if "://" not in target:
                assert (DOCS / target).exists(), target
