"""GPUs through the real nvidia-ml-py: over a stand-in for NVIDIA's library, and over a real GPU where there is one."""

import ctypes
import ctypes.util
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from vllm_kit import vllm_config, vllm_installed

from recursant.v1.worker_state_pb2 import WorkerState
from recursant.worker.gpu import DeviceFacts, GpuFacts
from recursant.worker.gpu_select import DeviceName, select
from recursant.worker.nvml import APPLICATION_XIDS, Devices, GpuSampler

PATIENCE_S = 20.0
A100, H100 = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
MIG = "MIG-11111111-2222-3333-4444-555555555555"
EVERYTHING, NO_EVENTS, NOTHING = 31, 23, 0
LIBRARY = ctypes.util.find_library("nvidia-ml")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


# --- which devices ---

NAMES = [
    DeviceName(0, A100, "00000000:3B:00.0"),
    DeviceName(1, H100, "00000000:5E:00.0"),
    DeviceName(2, "GPU-bbbb0000-0000-0000-0000-000000000000", "00000001:5E:00.0"),
]


@pytest.mark.parametrize(
    ("wanted", "expected", "chosen"),
    [
        ("0", None, [0]),
        ("1,0", None, [1, 0]),
        ("1, 2", 1, [1]),
        (A100, None, [0]),
        ("GPU-bbbbbbbb", None, [1]),
        # The beginning of two names.
        ("GPU-bbbb", None, []),
        ("0000:3b:00.0", None, [0]),
        ("00000001:5E:00.0", None, [2]),
        ("3b:00.0", None, [0]),
        (MIG, None, [MIG]),
        # As CUDA reads it: nothing after what fits nothing, and nothing twice.
        ("0,9,1", None, [0]),
        ("1,1,0", None, [1]),
        ("-1", None, []),
        ("", None, []),
        ("none", None, []),
        # Nobody said: vLLM takes the first ones; a sidecar does not guess.
        (None, 2, [0, 1]),
        (None, None, []),
    ],
)
def test_which_devices_are_meant(wanted: str | None, expected: int | None, chosen: list[int | str]) -> None:
    assert select(NAMES, wanted, expected) == chosen


def test_the_only_device_need_not_be_named() -> None:
    assert select(NAMES[:1], None, None) == [0]
    assert select([], None, None) == []
    assert select([], None, 4) == []


# --- what is made of them ---


def test_devices_of_one_worker_are_put_together() -> None:
    state = WorkerState()
    GpuFacts(
        (
            DeviceFacts(80_000, 60.0, 0.5, 1_000_000.0, ecc_errors=3),
            DeviceFacts(80_000, 71.0, 0.1, 1_000_000.0, ecc_errors=1),
        ),
        xid_errors=2,
        last_error="Xid 79",
        ecc_base=3,
    ).fill(state)
    assert (state.total_vram_mb, state.gpu_temperature_c) == (160_000, 71.0)
    assert (state.bandwidth_total_mb_s, state.bandwidth_used_mb_s) == (2_000_000.0, 600_000.0)
    # One since we look, and two of which the driver told.
    assert (state.gpu_ecc_errors, state.gpu_xid_errors, state.errors.cuda) == (1, 2, 3)
    assert state.errors.last == "Xid 79"


def test_what_a_device_does_not_say_is_absent() -> None:
    state = WorkerState()
    GpuFacts((DeviceFacts(), DeviceFacts(bandwidth_used=0.5, bandwidth_total_mb_s=1.0))).fill(state)
    absent = ("total_vram_mb", "gpu_temperature_c", "bandwidth_total_mb_s", "bandwidth_used_mb_s", "gpu_ecc_errors")
    assert not any(state.HasField(name) for name in absent)


# --- over the stand-in ---


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The stand-in, compiled and loaded under the name by which nvidia-ml-py asks for NVIDIA's own."""
    if LIBRARY is not None:
        pytest.skip("a real NVML is here: the stand-in would take its place")
    if COMPILER is None:
        pytest.skip("no C compiler here (cc, gcc, clang)")
    built = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_standin.c")
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run([*command, "-o", str(built), str(source)], check=True)
    # Whoever opens a library of that name after this gets it.
    return ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)


@pytest.fixture
def standin(library: Any) -> Iterator[Any]:
    library.standin_reset()
    yield library
    assert library.standin_initialised() == 0
    assert library.standin_event_sets() == 0


def add(
    standin: Any,
    uuid: str = A100,
    pci: str = "00000000:3B:00.0",
    *,
    gib: int = 80,
    temperature: int = 55,
    memory_use: int = 40,
    clock_mhz: int = 1_593,
    bus_bits: int = 5_120,
    ecc: int = 0,
    supports: int = EVERYTHING,
) -> None:
    """An A100 80GB, unless told otherwise: its memory runs at 1,593 MHz over 5,120 bits."""
    standin.standin_add(
        uuid.encode(),
        pci.encode(),
        ctypes.c_ulonglong(gib << 30),
        *(temperature, memory_use, clock_mhz, bus_bits),
        ctypes.c_ulonglong(ecc),
        supports,
    )


@pytest.fixture
def opened(standin: Any) -> Iterator[Callable[..., Devices]]:
    """Opens the devices that the test has added."""
    made: list[Devices] = []

    def open_devices(wanted: str | None = None, expected: int | None = None) -> Devices:
        pynvml.nvmlInit()
        made.append(Devices(pynvml, wanted, expected))
        return made[-1]

    yield open_devices
    for devices in made:
        devices.close()
        pynvml.nvmlShutdown()


def test_reads_a_device(standin: Any, opened: Callable[..., Devices]) -> None:
    add(standin)
    (facts,) = opened().read().devices
    assert (facts.total_vram_mb, facts.temperature_c, facts.bandwidth_used) == (80 * 1_024, 55.0, 0.4)
    # NVIDIA's data sheet: 2,039 GB/s.
    assert facts.bandwidth_total_mb_s == pytest.approx(2_039e9 / 2**20, rel=0.001)
    assert facts.ecc_errors == 0


def test_reads_only_the_workers_devices(standin: Any, opened: Callable[..., Devices]) -> None:
    add(standin)
    add(standin, H100, "00000000:5E:00.0", gib=94)
    devices = opened("GPU-bbbb")
    assert devices.names == [H100]
    assert [facts.total_vram_mb for facts in devices.read().devices] == [94 * 1_024]
    assert opened("0000:3b:00.0").names == [A100]
    assert len(opened(None, 2)) == 2
    assert len(opened(None)) == 0


def test_a_part_of_a_device_has_its_own_memory_and_the_devices_sensors(
    standin: Any, opened: Callable[..., Devices]
) -> None:
    add(standin, temperature=66)
    (facts,) = opened(MIG).read().devices
    assert (facts.total_vram_mb, facts.temperature_c) == (20 * 1_024, 66.0)


def test_sensors_that_a_device_has_not_are_absent(standin: Any, opened: Callable[..., Devices]) -> None:
    add(standin, supports=NOTHING)
    (facts,) = opened().read().devices
    assert facts == DeviceFacts(total_vram_mb=80 * 1_024)


def test_memory_errors_count_from_the_start(standin: Any, opened: Callable[..., Devices]) -> None:
    add(standin, ecc=7)
    devices = opened()
    assert devices.read().ecc_errors == 0
    standin.standin_set_ecc(0, ctypes.c_ulonglong(9))
    assert devices.read().ecc_errors == 2


def test_the_driver_tells_of_errors_of_its_devices(standin: Any, opened: Callable[..., Devices]) -> None:
    add(standin)
    add(standin, H100, "00000000:5E:00.0")
    devices = opened("0")
    paused: list[float] = []
    # The other device is nobody's here.
    assert not standin.standin_event(1, ctypes.c_ulonglong(8), ctypes.c_ulonglong(79))
    assert standin.standin_event(0, ctypes.c_ulonglong(8), ctypes.c_ulonglong(79))
    devices.wait(PATIENCE_S, paused.append)
    facts = devices.read()
    assert (facts.xid_errors, facts.last_error) == (1, "Xid 79")
    # What an application does to itself is no error of the device; a wait without an event ends too.
    for number in sorted(APPLICATION_XIDS):
        assert standin.standin_event(0, ctypes.c_ulonglong(8), ctypes.c_ulonglong(number))
        devices.wait(PATIENCE_S, paused.append)
    devices.wait(0.01, paused.append)
    assert devices.read().xid_errors == 1
    assert paused == []


def test_where_the_driver_tells_nothing_it_just_waits(standin: Any, opened: Callable[..., Devices]) -> None:
    add(standin, supports=NO_EVENTS)
    paused: list[float] = []
    opened().wait(1.5, paused.append)
    assert paused == [1.5]


def test_a_device_that_is_lost_is_an_error_once(standin: Any, opened: Callable[..., Devices]) -> None:
    add(standin)
    devices = opened()
    standin.standin_lose(0)
    facts = [devices.read() for _ in range(3)][-1]
    assert (facts.xid_errors, facts.last_error) == (1, f"{A100} is lost")
    assert facts.devices[0].total_vram_mb is None


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def test_the_sampler_reads_until_it_is_stopped(standin: Any) -> None:
    add(standin)
    sampler = GpuSampler(None)
    assert sampler.read() is None
    sampler.start()
    try:
        assert until(sampler.read).devices[0].temperature_c == 55.0
        standin.standin_set_temperature(0, 83)
        assert standin.standin_event(0, ctypes.c_ulonglong(8), ctypes.c_ulonglong(48))
        until(lambda: (facts := sampler.read()) and facts.xid_errors == 1 and facts.devices[0].temperature_c == 83.0)
    finally:
        sampler.stop()


def test_an_old_reading_is_none(standin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add(standin)
    sampler = GpuSampler(None)
    sampler.start()
    until(sampler.read)
    sampler.stop()
    monkeypatch.setattr("recursant.worker.nvml.STALE_S", -1.0)
    assert sampler.read() is None


def test_devices_that_cannot_be_told_apart_are_not_read(standin: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    add(standin)
    add(standin, H100)
    sampler = GpuSampler(None)
    sampler.start()
    until(lambda: "RECURSANT_GPUS" in caplog.text)
    sampler.stop()
    assert sampler.read() is None


def test_a_driver_that_fails_is_asked_again(
    standin: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("recursant.worker.nvml.RETRY_S", 0.02)
    add(standin)
    standin.standin_fail_init(9)  # NVML_ERROR_DRIVER_NOT_LOADED
    sampler = GpuSampler(None)
    sampler.start()
    until(lambda: "cannot ask NVML" in caplog.text)
    standin.standin_fail_init(0)
    until(sampler.read)
    sampler.stop()


@pytest.mark.parametrize(
    ("environment", "config", "gib"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, vllm_config(), 94),
        ({}, vllm_config(tensor=2), 80 + 94),
        # An operator knows better than vLLM's configuration.
        ({"RECURSANT_GPUS": f"{H100},{A100}"}, vllm_config(), 80 + 94),
        ({"RECURSANT_GPUS": "none"}, vllm_config(), 0),
    ],
)
def test_the_plugin_reports_the_gpus_of_its_engine(
    standin: Any,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    config: Any,
    gib: int,
    request: pytest.FixtureRequest,
) -> None:
    add(standin)
    add(standin, H100, "00000000:5E:00.0", gib=94)
    samplers: list[GpuSampler] = []

    def start(sampler: GpuSampler) -> None:
        samplers.append(sampler)
        sampler._thread.start()

    monkeypatch.setattr(GpuSampler, "start", start)
    for name in ("CUDA_VISIBLE_DEVICES", "RECURSANT_GPUS"):
        monkeypatch.delenv(name, raising=False)
    # Nobody is there: what matters is what would be reported.
    for name, value in ({"RECURSANT_REDIS_URL": "redis://127.0.0.1:1/0"} | environment).items():
        monkeypatch.setenv(name, value)
    with vllm_installed():
        from recursant.worker.vllm_plugin.plugin import RecursantStatLogger

        logger = RecursantStatLogger(config, [0])
    assert logger.reporter is not None
    request.addfinalizer(logger.reporter.stop)
    (sampler,) = samplers
    request.addfinalizer(sampler.stop)
    if gib:
        until(sampler.read)
    else:
        sampler._thread.join(PATIENCE_S)
    assert logger.reporter.state().total_vram_mb == gib * 1_024


# --- over what is really here ---


def test_without_a_driver_nothing_is_known() -> None:
    script = """
import time
from recursant.worker.nvml import GpuSampler
sampler = GpuSampler(None)
sampler.start()
sampler._thread.join(20)
print(sampler.read(), sampler._thread.is_alive())
"""
    if LIBRARY is not None:
        pytest.skip("a real NVML is here")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["None", "False"]


@pytest.mark.skipif(LIBRARY is None, reason="no NVIDIA driver here")
def test_reads_a_real_gpu() -> None:
    sampler = GpuSampler("0")
    sampler.start()
    try:
        (facts,) = until(sampler.read).devices
    finally:
        sampler.stop()
    assert facts.total_vram_mb is not None
    assert facts.total_vram_mb > 1_000
    assert facts.temperature_c is None or 0 < facts.temperature_c < 120
    assert facts.bandwidth_used is None or 0 <= facts.bandwidth_used <= 1
    # From a small card to what comes after the largest of today.
    assert facts.bandwidth_total_mb_s is None or 50_000 < facts.bandwidth_total_mb_s < 50_000_000
