"""Which of a machine's GPUs are a worker's. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# What switches looking at GPUs off.
NONE: Final = "none"
_MIG_PREFIX: Final = "mig-"


@dataclass(frozen=True, slots=True)
class DeviceName:
    """A GPU by its names.

    Attributes:
        index: NVML's, in the order of the PCI bus.
        uuid: "GPU-…".
        pci: "00000000:3B:00.0".
    """

    index: int
    uuid: str
    pci: str


def select(devices: Sequence[DeviceName], wanted: str | None, expected: int | None) -> list[int | str]:
    """The indices of a worker's devices, in order; the UUIDs of parts of a device (MIG), which have no index.

    Args:
        devices: of the machine, as far as it is seen from here.
        wanted: as CUDA_VISIBLE_DEVICES or an operator names them: indices, UUIDs or their beginnings, PCI addresses;
            None where nobody said.
        expected: how many the worker uses, if that is known.

    Returns:
        None of them where it cannot be told: half of the truth would be none.
    """
    if wanted is None:
        # Alone on the machine, or the first ones, as vLLM takes them.
        count = expected if expected is not None else len(devices)
        return [device.index for device in devices[:count]] if len(devices) == 1 or expected is not None else []
    if wanted.strip().lower() == NONE:
        return []
    found: list[int | str] = []
    for name in wanted.split(","):
        match = _match(devices, name.strip())
        # As CUDA reads it: what follows a name that fits nothing is not visible.
        if match is None or match in found:
            break
        found.append(match)
    return found if expected is None else found[:expected]


def _match(devices: Sequence[DeviceName], name: str) -> int | str | None:
    lowered = name.lower()
    if lowered.startswith(_MIG_PREFIX):
        return name
    if name.isascii() and name.isdigit():
        return next((device.index for device in devices if device.index == int(name)), None)
    if ":" in name:
        return next((device.index for device in devices if _same_pci(device.pci, lowered)), None)
    fitting = [device.index for device in devices if name and device.uuid.lower().startswith(lowered)]
    # A beginning that fits two names neither.
    return fitting[0] if len(fitting) == 1 else None


def _same_pci(ours: str, other: str) -> bool:
    """Is it one address? The domain has four or eight digits, or is left out."""
    domain, rest = ours.lower().split(":", 1)
    if other.count(":") == 1:
        return rest == other
    other_domain, other_rest = other.split(":", 1)
    return rest == other_rest and domain.lstrip("0") == other_domain.lstrip("0")
