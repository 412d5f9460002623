"""What is known of a worker's devices, put together. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from recursant.v1.worker_state_pb2 import WorkerState


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One reading of one device. None stands for "it does not say".

    Attributes:
        total_vram_mb: MiB of memory.
        temperature_c: degrees Celsius.
        bandwidth_used: share of the time in which its memory was read or written, 0..1.
        bandwidth_total_mb_s: the most that its memory can do, MiB/s.
        ecc_errors: counter: errors that its memory could not correct, since the driver was loaded.
    """

    total_vram_mb: int | None = None
    temperature_c: float | None = None
    bandwidth_used: float | None = None
    bandwidth_total_mb_s: float | None = None
    ecc_errors: int | None = None


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """All devices of one worker.

    Attributes:
        devices: a reading of each.
        xid_errors: counter: errors that the driver told of since we listen (Xid events).
        last_error: the newest of those in words; "" before the first.
        ecc_base: what `ecc_errors` of all devices was at the start: what happened before is not this worker's.
    """

    devices: tuple[DeviceFacts, ...]
    xid_errors: int = 0
    last_error: str = ""
    ecc_base: int = 0

    @property
    def ecc_errors(self) -> int | None:
        """Counter: uncorrected errors of all devices since the start; None where no device counts them."""
        total = _sum(device.ecc_errors for device in self.devices)
        return None if total is None else max(0, total - self.ecc_base)

    def fill(self, state: WorkerState) -> None:
        """Write into `state` what is known. Memory and bandwidth add up; the hottest device tells the temperature."""
        total_vram = _sum(device.total_vram_mb for device in self.devices)
        if total_vram is not None:
            state.total_vram_mb = total_vram
        temperatures = [device.temperature_c for device in self.devices if device.temperature_c is not None]
        if temperatures:
            state.gpu_temperature_c = max(temperatures)
        bandwidths = [
            (device.bandwidth_total_mb_s, device.bandwidth_used)
            for device in self.devices
            if device.bandwidth_total_mb_s is not None and device.bandwidth_used is not None
        ]
        # Of a worker on several devices all are in use together, so half of the sum would be no worker's bandwidth.
        if bandwidths and len(bandwidths) == len(self.devices):
            state.bandwidth_total_mb_s = sum(total for total, _ in bandwidths)
            state.bandwidth_used_mb_s = sum(total * used for total, used in bandwidths)
        ecc = self.ecc_errors
        if ecc is not None:
            state.gpu_ecc_errors = ecc
        state.gpu_xid_errors = self.xid_errors
        state.errors.cuda += self.xid_errors + (ecc or 0)
        if self.last_error:
            state.errors.last = self.last_error


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
