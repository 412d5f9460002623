"""The small parts of the simulated worker: options, faults, windows, recorder, state."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recursant.sim.faults import MAX_FAULTS, FaultKind, Faults, FaultSpec
from recursant.sim.options import SimOptions
from recursant.sim.recorder import MAX_BODIES, Recorder
from recursant.sim.stats import Histogram
from recursant.sim.window import SlidingSum
from recursant.sim.worker import SimWorker
from recursant.v1.worker_state_pb2 import WorkerPhase


class TestOptions:
    def test_everything_has_a_default(self) -> None:
        options = SimOptions()
        assert options.id_at(8101) == "sim-8101"
        assert options.address_at(8101) == "127.0.0.1:8101"

    def test_names_and_addresses(self) -> None:
        assert SimOptions(worker_id="gpu-1").id_at(1) == "gpu-1"
        assert SimOptions(host="::1").address_at(9) == "[::1]:9"
        assert SimOptions(advertise="10.0.0.7:80").address_at(9) == "10.0.0.7:80"
        # Nobody can dial a wildcard.
        assert not SimOptions(host="0.0.0.0").address_at(9).startswith("0.0.0.0")

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"port": 70_000}, "port"),
            ({"models": ()}, "models"),
            ({"models": ("a", "a")}, "twice"),
            ({"speed": 0.0}, "speed"),
            ({"report_interval_ms": 0}, "report_interval_ms"),
            ({"max_num_queued_reqs": 0}, "max_num_queued_reqs"),
            ({"scheduling_policy": "lifo"}, "fcfs, priority"),
            ({"profile": "huge"}, "unknown profile"),
            ({"profile": "tiny", "max_model_len": 10**9}, "max_model_len"),
        ],
    )
    def test_nonsense_is_refused_with_its_name(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            SimOptions(**given)

    def test_the_redis_password_is_not_shown(self) -> None:
        assert "secret" not in repr(SimOptions(redis_url="redis://:secret@localhost"))


class TestFaults:
    def test_a_count_is_used_up(self) -> None:
        faults = Faults()
        faults.add(FaultSpec(FaultKind.OOM, count=2), 0.0)
        met = [faults.meet(1.0) for _ in range(3)]
        assert [fault.kind if fault else None for fault in met] == [FaultKind.OOM, FaultKind.OOM, None]

    def test_a_duration_passes(self) -> None:
        faults = Faults()
        faults.add(FaultSpec(FaultKind.SLOW, duration_ms=500, factor=3.0), 10.0)
        slow = faults.state(FaultKind.SLOW, 10.4)
        assert slow is not None
        assert slow.factor == 3.0
        assert faults.state(FaultKind.SLOW, 10.5) is None
        assert faults.describe(10.5) == []

    def test_states_do_not_meet_requests_and_clearing_lifts_all(self) -> None:
        faults = Faults()
        faults.add(FaultSpec(FaultKind.SLOW), 0.0)
        faults.add(FaultSpec(FaultKind.BUSY), 0.0)
        met = faults.meet(0.0)
        assert met is not None
        assert met.kind is FaultKind.BUSY
        faults.clear()
        assert faults.meet(0.0) is None
        assert faults.state(FaultKind.SLOW, 0.0) is None

    def test_a_probability_meets_some(self) -> None:
        faults = Faults(seed=3)
        faults.add(FaultSpec(FaultKind.OOM, probability=0.3), 0.0)
        met = sum(faults.meet(0.0) is not None for _ in range(2_000))
        # Five standard deviations of a binomial around 600.
        assert abs(met - 600) < 5 * (2_000 * 0.3 * 0.7) ** 0.5

    def test_they_are_bounded(self) -> None:
        faults = Faults()
        for _ in range(3 * MAX_FAULTS):
            faults.add(FaultSpec(FaultKind.SLOW), 0.0)
        assert len(faults.describe(0.0)) == MAX_FAULTS

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ([], "object"),
            ({}, "kind must be one of"),
            ({"kind": "flood"}, "kind must be one of oom"),
            ({"kind": "oom", "cuont": 1}, "cuont"),
            ({"kind": "oom", "count": 0}, "count"),
            ({"kind": "oom", "count": True}, "count"),
            ({"kind": "slow", "factor": -1}, "factor"),
            ({"kind": "oom", "probability": 2}, "probability"),
        ],
    )
    def test_a_bad_specification_says_what_is_wrong(self, body: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            FaultSpec.parse(body)

    def test_parsing(self) -> None:
        spec = FaultSpec.parse({"kind": "error_in_stream", "count": 1, "after_tokens": 3})
        assert spec == FaultSpec(FaultKind.ERROR_IN_STREAM, count=1, after_tokens=3)
        assert FaultSpec.parse({"kind": "oom", "probability": 0}).probability == 0.0
        assert FaultSpec.parse({"kind": "slow"}).factor > 1


class TestSlidingSum:
    def test_what_is_older_than_the_window_is_gone(self) -> None:
        window = SlidingSum(10.0, 100)
        window.add(100.0, 5)
        window.add(105.0, 7)
        assert window.total(109.0) == 12
        assert window.total(110.5) == 7
        assert window.total(1_000.0) == 0

    def test_the_rate_is_of_the_time_that_has_passed(self) -> None:
        window = SlidingSum(10.0, 100)
        assert window.rate(3.0) == 0.0
        window.start(100.0)
        window.add(102.0, 40)
        assert window.rate(104.0) == pytest.approx(10.0)
        assert window.rate(111.0) == pytest.approx(4.0)

    @given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 9)), max_size=40))
    def test_it_agrees_with_a_list(self, steps: list[tuple[float, int]]) -> None:
        window, now, added = SlidingSum(10.0, 100), 50.0, []
        for pause, value in steps:
            now += pause
            window.add(now, value)
            added.append((now, value))
        total = window.total(now)
        # To the precision of a slot of 0.1 s.
        assert sum(value for at, value in added if at > now - 9.9) <= total
        assert total <= sum(value for at, value in added if at > now - 10.1)


def test_a_histogram_counts_by_upper_bound() -> None:
    histogram = Histogram((1, 2, 5))
    for value in (0.5, 1, 1.5, 5, 6):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1, 1]
    assert histogram.total == 14


class TestRecorder:
    def test_newest_first_and_bounded(self) -> None:
        recorder = Recorder(3)
        for number in range(5):
            recorder.record(f"r{number}", "POST", "/", [], b"x", 0.0)
        assert [one.id for one in recorder.newest(10)] == ["r4", "r3", "r2"]
        assert [one.id for one in recorder.newest(1)] == ["r4"]
        assert recorder.total == 5
        assert recorder.find("r0") is None

    def test_bodies_of_the_newest_are_kept(self) -> None:
        recorder = Recorder(1_000)
        for number in range(MAX_BODIES + 1):
            recorder.record(f"r{number}", "POST", "/", [], b"body", 0.0)
        first, last = recorder.find("r0"), recorder.find(f"r{MAX_BODIES}")
        assert first is not None
        assert last is not None
        assert (first.body, last.body) == (None, b"body")
        assert first.body_bytes == 4


class TestState:
    def test_an_idle_worker_reports_what_it_knows(self) -> None:
        options = SimOptions(
            worker_id="w1",
            models=("Qwen/Qwen2.5-7B",),
            lora_adapters=("sql",),
            exclusive=True,
            max_queue=7,
            profile="tiny",
            scheduling_policy="priority",
        )
        state = SimWorker(options, 8101, clock=lambda: 100.0).state()
        assert (state.id, state.address, state.phase) == ("w1", "127.0.0.1:8101", WorkerPhase.WORKER_PHASE_READY)
        assert [(model.name, model.family, model.max_model_len) for model in state.models] == [
            ("Qwen/Qwen2.5-7B", "", 16_384)
        ]
        assert list(state.lora_adapters) == ["sql"]
        assert (state.running_requests, state.waiting_requests, state.waiting_tokens) == (0, 0, 0)
        # 4,096 blocks of 16 tokens of 128 KiB.
        assert state.free_vram_mb == 4_096 * 16 * 131_072 // 2**20 == 8_192
        assert (state.kv_blocks_total, state.kv_blocks_free, state.kv_block_tokens) == (4_096, 4_096, 16)
        assert (state.capacity_tokens, state.max_num_seqs, state.max_queue) == (65_536, 64, 7)
        assert state.priority_scheduling
        assert state.prefix_caching
        assert state.exclusive
        assert state.token_rate == 0.0
        assert state.peak_token_rate > 1_000
        assert state.engine.startswith("recursant-sim ")
        # What cannot be known yet is absent.
        assert not state.HasField("queue_wait_ms")

    def test_what_was_not_said_is_absent_and_capacity_can_be_declared(self) -> None:
        options = SimOptions(profile="tiny", capacity_tokens=128_000)
        state = SimWorker(options, 1).state()
        assert state.capacity_tokens == 128_000
        assert not state.HasField("max_queue")
        assert not state.priority_scheduling

    def test_a_faster_simulation_declares_a_faster_worker(self) -> None:
        options = SimOptions(profile="tiny")
        usual, fast = (SimWorker(replace(options, speed=speed), 1).state() for speed in (1.0, 4.0))
        assert fast.peak_token_rate == pytest.approx(4 * usual.peak_token_rate)
        assert fast.bandwidth_total_mb_s == usual.bandwidth_total_mb_s
