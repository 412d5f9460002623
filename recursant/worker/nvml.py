"""A worker's GPUs through NVML (`nvidia-ml-py`): memory, temperature, bandwidth, ECC errors and Xid events (SPEC B3).

Where there is no driver or no GPU, nothing is known, and nothing is invented. NVML can hang when a device is lost, so
it has a thread of its own, and whoever reads takes the newest reading that is not too old.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from recursant.worker.gpu import DeviceFacts, GpuFacts
from recursant.worker.gpu_select import DeviceName, select

# Between two readings. Seconds; an event of the driver comes at once.
READ_S: Final = 1.0
# An older reading is none: the driver hangs.
STALE_S: Final = 10.0
# After NVML failed as a whole.
RETRY_S: Final = 30.0
MIB: Final = 1 << 20
# Data is moved at both edges of the memory's clock.
TRANSFERS_PER_CLOCK: Final = 2
# What Xid events of these numbers tell of is the application, not the device: faults of its kernels, its end by force.
APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})

_log = logging.getLogger(__name__)


class Devices:
    """The chosen GPUs of an initialised NVML. Its calls may block."""

    def __init__(self, nvml: Any, wanted: str | None, expected: int | None) -> None:
        """Find the devices.

        Raises:
            NVMLError: NVML does not work here.
        """
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        names = [
            DeviceName(index, _text(nvml.nvmlDeviceGetUUID(handle)), _text(nvml.nvmlDeviceGetPciInfo(handle).busId))
            for index, handle in enumerate(handles)
        ]
        chosen = select(names, wanted, expected)
        self.names = [names[each].uuid if isinstance(each, int) else each for each in chosen]
        self._handles = [handles[each] if isinstance(each, int) else self._part(each) for each in chosen]
        # Of a part (MIG) the device around it has the temperature, the bandwidth and the events.
        self._whole = [
            handle if isinstance(each, int) else nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            for each, handle in zip(chosen, self._handles, strict=True)
        ]
        self._events = self._listen()
        self._xid_errors = 0
        self._last_error = ""
        self._lost: set[int] = set()
        self._ecc_base = sum(facts.ecc_errors or 0 for facts in self._read_all())

    def __len__(self) -> int:
        return len(self._handles)

    def read(self) -> GpuFacts:
        """Everything now."""
        return GpuFacts(tuple(self._read_all()), self._xid_errors, self._last_error, self._ecc_base)

    def wait(self, seconds: float, pause: Callable[[float], object]) -> None:
        """Wait for an event of the driver, so long at most.

        Args:
            seconds: the bound.
            pause: waits so long, where the driver tells of no events.
        """
        if self._events is None:
            pause(seconds)
            return
        try:
            event = self._nvml.nvmlEventSetWait_v2(self._events, int(seconds * 1_000))
        except self._nvml.NVMLError as error:
            if error.value != self._nvml.NVML_ERROR_TIMEOUT:
                # It would fail again at once.
                pause(seconds)
            return
        if event.eventType == self._nvml.nvmlEventTypeXidCriticalError and event.eventData not in APPLICATION_XIDS:
            self._failed(f"Xid {event.eventData}")

    def close(self) -> None:
        """Stop listening."""
        if self._events is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._events)

    # --- inside ---

    def _part(self, uuid: str) -> Any:
        return self._nvml.nvmlDeviceGetHandleByUUID(uuid.encode())

    def _listen(self) -> Any:
        """The events of the devices; None where none of them has any."""
        nvml = self._nvml
        wanted = nvml.nvmlEventTypeXidCriticalError
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return None
        heard = 0
        for handle in self._whole:
            with suppress(nvml.NVMLError):
                if nvml.nvmlDeviceGetSupportedEventTypes(handle) & wanted:
                    nvml.nvmlDeviceRegisterEvents(handle, wanted, events)
                    heard += 1
        if heard:
            return events
        nvml.nvmlEventSetFree(events)
        return None

    def _read_all(self) -> Sequence[DeviceFacts]:
        return [
            self._read_one(number, handle, whole)
            for number, (handle, whole) in enumerate(zip(self._handles, self._whole, strict=True))
        ]

    def _read_one(self, number: int, handle: Any, whole: Any) -> DeviceFacts:
        nvml = self._nvml

        def ask(call: Callable[..., Any], *arguments: Any) -> Any:
            try:
                return call(*arguments)
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST and number not in self._lost:
                    self._lost.add(number)
                    self._failed(f"{self.names[number]} is lost")
                # Most often: this device has no such sensor.
                return None

        memory = ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        use = ask(nvml.nvmlDeviceGetUtilizationRates, whole)
        clock_mhz = ask(nvml.nvmlDeviceGetMaxClockInfo, whole, nvml.NVML_CLOCK_MEM)
        bus_bits = ask(nvml.nvmlDeviceGetMemoryBusWidth, whole)
        temperature = ask(nvml.nvmlDeviceGetTemperature, whole, nvml.NVML_TEMPERATURE_GPU)
        return DeviceFacts(
            total_vram_mb=memory.total // MIB if memory is not None else None,
            temperature_c=float(temperature) if temperature is not None else None,
            bandwidth_used=min(use.memory / 100, 1.0) if use is not None else None,
            bandwidth_total_mb_s=clock_mhz * 1e6 * TRANSFERS_PER_CLOCK * bus_bits / 8 / MIB
            if clock_mhz and bus_bits
            else None,
            ecc_errors=ask(
                nvml.nvmlDeviceGetTotalEccErrors,
                whole,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
        )

    def _failed(self, text: str) -> None:
        self._xid_errors += 1
        self._last_error = text
        _log.error("the GPU has failed: %s", text)


class GpuSampler:
    """Reads the GPUs on a thread of its own.

    Args:
        wanted: which, as CUDA_VISIBLE_DEVICES names them; None: as can be told.
        expected: how many the worker uses, if that is known.
    """

    def __init__(self, wanted: str | None, expected: int | None = None) -> None:
        self._wanted = wanted
        self._expected = expected
        self._newest: tuple[float, GpuFacts] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="recursant-nvml", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def stop(self) -> None:
        """Stop reading. One that hangs in the driver is left to itself."""
        self._stopped.set()
        self._thread.join(READ_S * 2)

    def read(self) -> GpuFacts | None:
        """The newest reading; None where there is none, or it is too old. Never waits."""
        newest = self._newest
        if newest is None or time.monotonic() - newest[0] > STALE_S:
            return None
        return newest[1]

    # --- on the thread ---

    def _run(self) -> None:
        try:
            import pynvml
        except ImportError:
            _log.info("nvidia-ml-py is not installed: nothing is known of GPUs")
            return
        said = False
        while not self._stopped.is_set():
            try:
                if not self._follow(pynvml):
                    return
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
                    _log.info("no NVIDIA driver here: nothing is known of GPUs")
                    return
                if not said:
                    _log.warning("cannot ask NVML, trying on: %s", error)
                said = True
            self._stopped.wait(RETRY_S)

    def _follow(self, nvml: Any) -> bool:
        """Read until stopped; False where there is nothing to read."""
        nvml.nvmlInit()
        try:
            devices = Devices(nvml, self._wanted, self._expected)
            try:
                if not len(devices):
                    _log.info("which GPUs are this worker's cannot be told: name them in RECURSANT_GPUS, or --gpus")
                    return False
                _log.info("reading GPUs %s", ", ".join(devices.names))
                while not self._stopped.is_set():
                    self._newest = (time.monotonic(), devices.read())
                    devices.wait(READ_S, self._stopped.wait)
                return False
            finally:
                devices.close()
        finally:
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
