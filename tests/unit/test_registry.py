"""Who is in the fleet and who may be used (SPEC B2, B5; DESIGN §9 "Beats")."""

from typing import Any

import pytest
from registry_kit import Bench, changed_to, gone, report

from recursant.config.model import Config
from recursant.fleet.registry import LOAD_TRUST_S, MAX_STOPPED, Gone
from recursant.fleet.worker import Model, WorkerRecord, WorkerStatus
from recursant.v1.worker_state_pb2 import LoadedModel, WorkerPhase, WorkerState

READY, MISSING, WARMING = WorkerStatus.READY, WorkerStatus.MISSING, WorkerStatus.WARMING
STOPPED = WorkerPhase.WORKER_PHASE_STOPPED


# --- reports ---


@pytest.mark.parametrize(
    ("phase", "status"),
    [
        (WorkerPhase.WORKER_PHASE_WARMING, WorkerStatus.WARMING),
        (WorkerPhase.WORKER_PHASE_READY, WorkerStatus.READY),
        (WorkerPhase.WORKER_PHASE_DRAINING, WorkerStatus.DRAINING),
        (WorkerPhase.WORKER_PHASE_ISOLATED, WorkerStatus.ISOLATED),
    ],
)
def test_a_report_is_a_record(phase: WorkerPhase, status: WorkerStatus) -> None:
    bench = Bench()
    state = report(phase=phase)
    assert bench.hear(state) == [
        WorkerRecord("w1", status, "10.0.0.1:8000", (Model("Qwen/Qwen2.5-7B", ""),), state, bench.now)
    ]


def test_families_come_from_the_worker_or_from_the_configuration() -> None:
    config = Config.model_validate({"agents": [{"agent_id": "chat", "model_family": "qwen"}]})
    bench = Bench(config)
    models = [
        LoadedModel(name="Qwen/Qwen2.5-7B", max_model_len=32_768),
        LoadedModel(name="tiny", family="phi"),
        LoadedModel(name="nobody"),
    ]
    bench.hear(report(models=models))
    assert bench.registry.records["w1"].models == (
        Model("Qwen/Qwen2.5-7B", "qwen", 32_768),
        Model("tiny", "phi"),
        Model("nobody", ""),
    )
    bench.hear(report(sequence=2, models=models[:1]))
    assert bench.registry.records["w1"].models == (Model("Qwen/Qwen2.5-7B", "qwen", 32_768),)


@pytest.mark.parametrize(
    ("incarnation", "sequence", "counts"),
    [("a", 6, True), ("a", 5, False), ("a", 4, False), ("b", 1, True), ("b", 900, True)],
)
def test_only_a_report_that_is_newer_counts(incarnation: str, sequence: int, counts: bool) -> None:
    bench = Bench()
    bench.hear(report(sequence=5, running_requests=5))
    bench.now += 0.1
    updates = bench.hear(report(sequence=sequence, incarnation=incarnation, running_requests=9))
    assert bool(updates) is counts
    record = bench.registry.records["w1"]
    assert record.state.running_requests == (9 if counts else 5)
    assert record.last_beat == (bench.now if counts else bench.now - 0.1)


def test_a_new_incarnation_replaces_everything() -> None:
    bench = Bench()
    bench.hear(report(sequence=5, token_rate=900.0, free_vram_mb=7))
    bench.hear(report(sequence=1, incarnation="b"))
    assert bench.registry.records["w1"].state == report(sequence=1, incarnation="b")


def test_the_late_words_of_the_process_before_do_not_count() -> None:
    bench = Bench()
    bench.hear(report(sequence=5))
    bench.hear(report(sequence=1, incarnation="b"))
    assert bench.hear(report(sequence=6)) == []
    assert bench.hear(report(sequence=7, phase=STOPPED)) == []
    assert bench.status() is READY


def test_a_worker_that_took_another_ones_id_gives_it_back_when_it_dies() -> None:
    bench = Bench()
    bench.start("w1")
    first = bench.beating["w1"]
    bench.start("w1", incarnation="b")
    bench.silence("w1")
    bench.run(1.0)
    assert bench.status() is MISSING
    bench.resume(first)
    bench.run(0.1)
    assert bench.status() is READY


# --- silence ---


@pytest.mark.parametrize(
    ("interval_ms", "settings", "window"),
    [
        (200, {}, 0.6),
        (50, {}, 0.6),  # at least 600 ms
        (1_000, {}, 3.0),  # three of its own intervals
        (200, {"missed_beats": 5}, 1.0),
        (200, {"min_silence_ms": 2_000}, 2.0),
    ],
)
def test_three_missed_beats_make_it_missing(interval_ms: int, settings: dict[str, int], window: float) -> None:
    bench = Bench(Config.model_validate({"liveness": settings}))
    bench.hear(report(report_interval_ms=interval_ms))
    bench.run(window - 0.05)
    assert bench.status() is READY
    updates = bench.run(0.05)
    assert [update.status for update in updates if isinstance(update, WorkerRecord)] == [MISSING]
    assert bench.run(2.0) == []  # said once


def test_one_report_brings_it_back() -> None:
    bench = Bench()
    bench.hear(report())
    bench.run(5.0)
    assert bench.status() is MISSING
    assert changed_to(bench.hear(report(sequence=2)), "w1") == [READY]
    bench.run(0.55)
    assert bench.status() is READY
    bench.run(0.05)
    assert bench.status() is MISSING


def test_nothing_moves_but_the_silent_one() -> None:
    bench = Bench()
    bench.start("w1", "w2", "w3", "w4")
    others = {worker_id: bench.registry.records[worker_id] for worker_id in ("w2", "w3", "w4")}
    bench.silence("w1")
    updates = bench.run(1.0)
    assert changed_to(updates, "w1") == [MISSING]
    for worker_id, before in others.items():
        assert changed_to(updates, worker_id) == [READY]
        after = bench.registry.records[worker_id]
        assert (after.endpoint, after.models) == (before.endpoint, before.models)


def test_an_interval_that_becomes_shorter_is_judged_by_the_shorter_one() -> None:
    bench = Bench()
    bench.hear(report(report_interval_ms=10_000))
    bench.run(1.0)
    bench.hear(report(sequence=2))
    bench.run(0.6)
    assert bench.status() is MISSING


# --- leaving ---


def test_a_farewell_removes_at_once_and_the_same_process_does_not_come_back() -> None:
    bench = Bench()
    bench.hear(report(sequence=5))
    assert bench.hear(report(sequence=6, phase=STOPPED)) == [Gone("w1", forgotten=False)]
    assert bench.hear(report(sequence=4)) == []
    assert bench.take(bench.registry.load([report(sequence=5)], bench.now)) == []
    assert bench.registry.records == {}
    assert changed_to(bench.hear(report(incarnation="b")), "w1") == [READY]


def test_farewells_of_strangers_are_remembered_within_bounds() -> None:
    bench = Bench()
    for number in range(MAX_STOPPED + 1):
        assert bench.hear(report(f"w{number}", phase=STOPPED)) == []
    assert bench.hear(report("w1")) == []
    # The oldest farewell is forgotten.
    assert changed_to(bench.hear(report("w0")), "w0") == [READY]


def test_missing_for_long_is_forgotten() -> None:
    bench = Bench(Config.model_validate({"liveness": {"forget_after_ms": 5_000}}))
    bench.hear(report())
    bench.run(0.6 + 4.9)
    assert bench.status() is MISSING
    assert bench.run(0.2) == [Gone("w1", forgotten=True)]


def test_a_worker_that_came_back_is_not_forgotten() -> None:
    bench = Bench(Config.model_validate({"liveness": {"forget_after_ms": 5_000}}))
    bench.hear(report())
    bench.run(4.0)
    bench.hear(report(sequence=2))
    bench.run(4.0)
    assert bench.status() is MISSING


def test_absence_from_the_hash_removes_nobody() -> None:
    bench = Bench()
    bench.hear(report())
    assert bench.take(bench.registry.load([], bench.now)) == []
    assert bench.status() is READY


# --- the address belongs to who reports there ---


def test_a_worker_under_a_new_name_replaces_the_missing_one_at_its_address() -> None:
    bench = Bench()
    bench.hear(report("old"))
    bench.run(1.0)
    updates = bench.hear(report("new"))
    assert gone(updates) == ["old"]
    assert bench.statuses() == {"new": READY}


def test_a_worker_that_was_replaced_before_it_was_missed_is_gone_then() -> None:
    bench = Bench()
    bench.hear(report("old"))
    bench.run(0.3)
    bench.start("new", address="10.0.0.1:8000")
    assert bench.statuses() == {"old": READY, "new": READY}
    assert gone(bench.run(1.0)) == ["old"]
    assert bench.statuses() == {"new": READY}


def test_a_worker_that_moved_is_not_replaced_at_its_old_address() -> None:
    bench = Bench()
    bench.hear(report("w1", address="10.0.0.1:8000"))
    bench.hear(report("w1", 2, address="10.0.0.2:8000"))
    bench.run(1.0)
    assert gone(bench.hear(report("w2", address="10.0.0.1:8000"))) == []
    assert bench.statuses() == {"w1": MISSING, "w2": READY}


def test_a_worker_that_left_and_came_back_elsewhere_is_not_replaced_at_its_old_address() -> None:
    bench = Bench()
    bench.hear(report("w1", address="10.0.0.1:8000"))
    bench.hear(report("w1", 2, phase=STOPPED))
    bench.hear(report("w1", incarnation="b", address="10.0.0.2:8000"))
    bench.run(1.0)
    assert gone(bench.hear(report("w2", address="10.0.0.1:8000"))) == []
    assert bench.statuses() == {"w1": MISSING, "w2": READY}


# --- loads ---


def test_the_first_load_counts_for_one_window() -> None:
    bench = Bench(link=False)
    bench.link_alive = True
    bench.registry.link_up(bench.now)
    bench.take(bench.registry.load([report("w1", 7), report("w2", 9, address="10.0.0.2:8000")], bench.now))
    assert bench.statuses() == {"w1": READY, "w2": READY}
    assert bench.registry.records["w1"].last_beat is None
    bench.run(0.3)
    bench.hear(report("w1", 8))
    bench.run(0.3)
    assert bench.statuses() == {"w1": READY, "w2": MISSING}


def test_a_hash_full_of_dead_workers_is_no_reason_to_spare_them() -> None:
    bench = Bench(link=False)
    bench.link_alive = True
    bench.registry.link_up(bench.now)
    bench.take(
        bench.registry.load([report(f"w{number}", address=f"10.0.0.{number + 1}:1") for number in range(9)], bench.now)
    )
    bench.run(0.6)
    assert set(bench.statuses().values()) == {MISSING}


def test_the_dead_are_not_believed_for_as_long_as_they_said() -> None:
    bench = Bench(link=False)
    bench.link_alive = True
    bench.registry.link_up(bench.now)
    bench.take(bench.registry.load([report("w1", report_interval_ms=3_600_000)], bench.now))
    bench.run(LOAD_TRUST_S - 0.1)
    assert bench.status() is READY
    bench.run(0.2)
    assert bench.status() is MISSING
    # One that lives has the time that it asked for.
    bench.hear(report("w1", 2, report_interval_ms=3_600_000))
    bench.run(60.0)
    assert bench.status() is READY


def test_the_report_that_the_load_brought_is_no_beat() -> None:
    bench = Bench(link=False)
    bench.registry.link_up(bench.now)
    bench.take(bench.registry.load([report(sequence=7)], bench.now))
    assert bench.hear(report(sequence=7)) == []
    assert changed_to(bench.hear(report(sequence=8)), "w1") == [READY]


def test_a_later_load_brings_beats_that_the_channel_lost() -> None:
    bench = Bench()
    bench.hear(report(sequence=1))
    bench.run(1.0)
    assert bench.status() is MISSING
    assert bench.take(bench.registry.load([report(sequence=1)], bench.now)) == []
    assert changed_to(bench.take(bench.registry.load([report(sequence=3)], bench.now)), "w1") == [READY]


def test_a_stranger_in_a_later_load_must_report_first() -> None:
    bench = Bench()
    bench.take(bench.registry.load([report(sequence=3)], bench.now))
    assert bench.status() is MISSING
    bench.hear(report(sequence=4))
    assert bench.status() is READY


def test_a_stranger_that_never_reports_is_forgotten() -> None:
    bench = Bench(Config.model_validate({"liveness": {"forget_after_ms": 5_000}}))
    bench.run(1.0)
    bench.take(bench.registry.load([report(sequence=3)], bench.now))
    assert gone(bench.run(4.9)) == []
    assert gone(bench.run(0.2)) == ["w1"]


# --- the link ---


def test_nobody_is_judged_while_the_link_is_down() -> None:
    bench = Bench()
    bench.start("w1", "w2", "w3")
    bench.link_alive = False
    bench.take(bench.registry.link_down(bench.now))
    assert bench.run(3_600) == []
    assert set(bench.statuses().values()) == {READY}


def test_after_it_healed_there_is_a_grace_period() -> None:
    bench = Bench(Config.model_validate({"liveness": {"grace_ms": 2_000}}))
    bench.start("w1", "w2", "w3", "w4")
    bench.link_alive = False
    bench.take(bench.registry.link_down(bench.now))
    bench.run(60)
    bench.link_alive = True
    bench.registry.link_up(bench.now)
    bench.silence("w1")
    bench.run(1.95)
    assert bench.status("w1") is READY
    bench.run(0.1)
    assert bench.statuses() == {"w1": MISSING, "w2": READY, "w3": READY, "w4": READY}


def test_after_it_healed_everybody_has_a_whole_window() -> None:
    bench = Bench(Config.model_validate({"liveness": {"grace_ms": 2_000}}))
    bench.hear(report(report_interval_ms=5_000))
    bench.take(bench.registry.link_down(bench.now))
    bench.now += 60
    bench.registry.link_up(bench.now)
    bench.run(14.9)
    assert bench.status() is READY
    bench.run(0.2)
    assert bench.status() is MISSING


def test_the_first_connection_needs_no_grace() -> None:
    bench = Bench()
    bench.hear(report())
    bench.run(0.6)
    assert bench.status() is MISSING


def test_silence_that_nobody_could_have_heard_does_not_count() -> None:
    bench = Bench()
    bench.hear(report())
    bench.link_alive = False  # the server hangs: nothing comes, and nobody has noticed yet
    bench.run(1.5)
    assert bench.status() is READY
    bench.link_alive = True  # it answers again, as if nothing had been
    bench.run(1.9)
    assert bench.status() is READY
    bench.run(0.2)
    assert bench.status() is MISSING


# --- many at once ---


def test_when_most_fall_silent_together_they_get_the_grace_period() -> None:
    bench = Bench(Config.model_validate({"liveness": {"grace_ms": 2_000}}))
    bench.start("w1", "w2", "w3", "w4", "w5")
    bench.silence("w1", "w2", "w3")
    bench.run(0.6 + 1.5)
    assert set(bench.statuses().values()) == {READY}
    bench.run(1.0)
    assert [worker_id for worker_id, status in bench.statuses().items() if status is MISSING] == ["w1", "w2", "w3"]


def test_half_of_them_is_not_most() -> None:
    bench = Bench()
    bench.start("w1", "w2", "w3", "w4")
    bench.silence("w1", "w2")
    bench.run(0.7)
    assert bench.statuses() == {"w1": MISSING, "w2": MISSING, "w3": READY, "w4": READY}


def test_one_alone_is_not_most() -> None:
    bench = Bench()
    bench.start("w1")
    bench.silence("w1")
    bench.run(0.7)
    assert bench.status() is MISSING


def test_when_all_fall_silent_they_are_kept_until_one_reports() -> None:
    bench = Bench(Config.model_validate({"liveness": {"grace_ms": 2_000, "forget_after_ms": 100_000}}))
    bench.start("w1", "w2", "w3")
    states = dict(bench.beating)
    bench.silence(*states)
    assert bench.run(60) == []
    bench.resume(states["w1"])
    bench.run(1.9)
    assert set(bench.statuses().values()) == {READY}
    bench.run(0.5)
    assert bench.statuses() == {"w1": READY, "w2": MISSING, "w3": MISSING}


def test_when_all_fall_silent_for_very_long_they_are_missing_after_all() -> None:
    bench = Bench(Config.model_validate({"liveness": {"forget_after_ms": 10_000}}))
    bench.start("w1", "w2", "w3")
    bench.silence("w1", "w2", "w3")
    bench.run(10)
    assert set(bench.statuses().values()) == {READY}
    bench.run(1.5)
    assert set(bench.statuses().values()) == {MISSING}


def test_a_common_silence_spares_only_those_that_ever_reported() -> None:
    bench = Bench(link=False)
    bench.link_alive = True
    bench.registry.link_up(bench.now)
    bench.take(bench.registry.load([report("old", report_interval_ms=1_000)], bench.now))
    bench.start("w1", "w2", "w3")
    bench.silence("w1", "w2", "w3")
    bench.run(3.0)
    assert bench.statuses() == {"old": MISSING, "w1": READY, "w2": READY, "w3": READY}


def test_those_that_never_reported_prove_no_common_silence() -> None:
    bench = Bench(link=False)
    bench.link_alive = True
    bench.registry.link_up(bench.now)
    loaded = [report(f"old{n}", report_interval_ms=1_000, address=f"10.0.0.{n}:1") for n in range(1, 5)]
    bench.take(bench.registry.load(loaded, bench.now))
    bench.start("w1", "w2")
    bench.run(1.5)
    bench.silence("w1")
    bench.run(0.7)
    assert bench.status("w1") is MISSING


def test_a_common_silence_that_ended_does_not_shorten_the_next() -> None:
    bench = Bench(Config.model_validate({"liveness": {"grace_ms": 2_000}}))
    bench.start("w1", "w2", "w3")
    for _ in range(3):
        states = dict(bench.beating)
        bench.silence("w1", "w2")
        bench.run(2.0)
        assert set(bench.statuses().values()) == {READY}
        for worker_id in ("w1", "w2"):
            bench.resume(states[worker_id])
        bench.run(1.0)


# --- configured workers ---


def static_config(**changes: Any) -> Config:
    return Config.model_validate(
        {"workers": [{"host": "10.0.0.1", "models": ["qwen", {"name": "tiny", "family": "phi"}], "id": "w1"} | changes]}
    )


def test_a_configured_worker_is_there_from_the_start() -> None:
    record = Bench(static_config(exclusive=True, capacity_tokens=9), link=False).registry.records["w1"]
    assert record.static
    assert record.status is WARMING
    assert record.endpoint == "10.0.0.1:8000"
    assert record.models == (Model("qwen", "qwen"), Model("tiny", "phi"))
    assert record.state.exclusive
    assert record.state.capacity_tokens == 9
    assert not record.state.HasField("free_vram_mb")
    assert record.last_beat is None


def test_a_configured_worker_waits_for_its_first_scrape() -> None:
    bench = Bench(static_config())
    bench.run(60)
    assert bench.status() is WARMING
    bench.hear(report(report_interval_ms=1_000))
    assert bench.status() is READY
    assert bench.registry.records["w1"].static


def test_everybody_was_heard_a_grace_period_after_the_link_first_came() -> None:
    bench = Bench(link=False)
    bench.take(bench.registry.link_down(bench.now))
    assert not bench.registry.settled(bench.now + 1e6)
    # It comes for a moment only.
    bench.registry.link_up(bench.now)
    bench.now += 0.1
    bench.take(bench.registry.link_down(bench.now))
    assert not bench.registry.settled(bench.now + 1e6)
    bench.registry.link_up(bench.now)
    bench.take(bench.registry.load([], bench.now))
    grace = Config().liveness.grace_ms / 1_000
    assert not bench.registry.settled(bench.now + grace - 0.01)
    assert bench.registry.settled(bench.now + grace)
    # What was heard once is known, whatever becomes of the link.
    bench.now += 60
    bench.take(bench.registry.link_down(bench.now))
    bench.registry.link_up(bench.now)
    assert bench.registry.settled(bench.now)


def test_a_scraped_worker_is_missing_when_it_is_said_to_be_and_not_when_nobody_scrapes() -> None:
    bench = Bench(static_config())
    bench.start("other")
    bench.hear(report(sequence=1, report_interval_ms=1_000, scraped=True))
    bench.run(600)
    assert bench.status() is READY
    gone = report(sequence=2, report_interval_ms=1_000, scraped=True, phase=WorkerPhase.WORKER_PHASE_UNREACHABLE)
    assert changed_to(bench.hear(gone), "w1") == [MISSING]
    bench.run(600)
    assert bench.status() is MISSING
    bench.hear(report(sequence=3, report_interval_ms=1_000, scraped=True))
    assert bench.status() is READY


def test_who_is_not_configured_here_is_missing_by_silence_whoever_reports_it() -> None:
    bench = Bench()
    bench.start("other")
    bench.hear(report("w2", address="10.0.0.9:8000", scraped=True))
    bench.run(1.0)
    assert bench.status("w2") is MISSING


def test_a_configured_worker_serves_while_redis_cannot_be_asked() -> None:
    bench = Bench(static_config(), link=False)
    assert changed_to(bench.take(bench.registry.link_down(bench.now)), "w1") == [READY]
    bench.run(600)
    assert bench.status() is READY


def test_redis_coming_does_not_take_it_out_until_a_scrape_could_have_come() -> None:
    bench = Bench(static_config(), link=False)
    bench.take(bench.registry.link_down(bench.now))
    bench.now += 10
    bench.link_alive = True
    bench.registry.link_up(bench.now)
    bench.take(bench.registry.load([], bench.now))
    bench.run(2.9)  # three intervals of one second
    assert bench.status() is READY
    bench.run(0.2)
    assert bench.status() is WARMING


def test_what_is_assumed_while_redis_is_away_is_judged_when_it_is_back() -> None:
    bench = Bench(static_config())
    bench.run(1.0)
    bench.take(bench.registry.link_down(bench.now))
    assert bench.status() is READY
    bench.registry.link_up(bench.now)
    bench.run(2.9)
    assert bench.status() is READY
    bench.run(0.2)
    assert bench.status() is WARMING


def test_a_scrape_that_only_a_load_brings_counts_for_one_window() -> None:
    bench = Bench(static_config())
    bench.run(1.0)
    bench.take(bench.registry.load([report(sequence=9)], bench.now))
    assert bench.status() is READY
    bench.run(0.6)
    assert bench.status() is MISSING


def test_a_configured_worker_stays_when_another_reports_at_its_address() -> None:
    bench = Bench(static_config())
    bench.hear(report())
    bench.run(1.0)
    assert bench.status() is MISSING
    assert gone(bench.hear(report("sidecar"))) == []
    assert bench.statuses() == {"w1": MISSING, "sidecar": READY}


def test_what_was_scraped_while_redis_could_not_be_read_counts_when_it_can() -> None:
    bench = Bench(static_config())
    bench.take(bench.registry.link_down(bench.now))
    bench.now += 10
    bench.registry.link_up(bench.now)
    bench.take(bench.registry.load([report(sequence=9)], bench.now))
    assert bench.status() is READY


def test_a_configured_worker_is_never_forgotten() -> None:
    config = static_config().model_copy(
        update={"liveness": Config().liveness.model_copy(update={"forget_after_ms": 1_000})}
    )
    bench = Bench(config)
    bench.hear(report())
    assert gone(bench.run(60)) == []
    assert bench.status() is MISSING
    bench.hear(report(sequence=2, phase=STOPPED))
    bench.hear(report(sequence=1, incarnation="b"))
    assert bench.status() is READY
    bench.hear(report(sequence=2, incarnation="b", phase=STOPPED))
    assert bench.status() is MISSING


def test_of_two_configured_workers_with_one_id_there_is_one() -> None:
    config = Config.model_validate({"workers": [{"host": "10.0.0.1", "id": "w"}, {"host": "10.0.0.2", "id": "w"}]})
    assert [record.endpoint for record in Bench(config).registry.records.values()] == ["10.0.0.2:8000"]


# --- names ---


def test_a_name_must_be_resolved_first() -> None:
    bench = Bench()
    bench.hear(report(address="node:8000"))
    assert bench.status() is WorkerStatus.UNRESOLVED
    assert bench.registry.records["w1"].endpoint is None
    assert bench.registry.names() == {"node": True}
    updates = bench.take(bench.registry.resolved("node", ["10.0.0.9"]))
    assert changed_to(updates, "w1") == [READY]
    assert bench.registry.records["w1"].endpoint == "10.0.0.9:8000"


def test_the_same_answer_changes_nothing_and_another_moves_the_worker() -> None:
    bench = Bench()
    bench.hear(report(address="node:8000"))
    bench.registry.resolved("node", ["10.0.0.9"])
    assert bench.registry.resolved("node", ["10.0.0.1", "10.0.0.9"]) == []
    bench.registry.resolved("node", ["10.0.0.1"])
    assert bench.registry.records["w1"].endpoint == "10.0.0.1:8000"
    bench.registry.resolved("node", [])
    assert bench.status() is WorkerStatus.UNRESOLVED


def test_missing_is_said_before_unresolved() -> None:
    bench = Bench()
    bench.hear(report(address="node:8000"))
    bench.run(1.0)
    assert bench.status() is MISSING


def test_of_every_name_it_is_known_whether_anybody_lives_there() -> None:
    bench = Bench(static_config(), link=False)
    bench.link_alive = True
    bench.registry.link_up(bench.now)
    loaded = [report("w2", address="dead:1"), report("w3", address="alive:1"), report("w4", address="alive:2")]
    bench.take(bench.registry.load(loaded, bench.now))
    assert bench.registry.names() == {"dead": False, "alive": False}
    bench.hear(report("w4", 2, address="alive:2"))
    assert bench.registry.names() == {"dead": False, "alive": True}
    bench.run(1.0)
    assert bench.registry.names() == {"dead": False, "alive": False}


def test_names_of_workers_that_left_are_not_asked_for() -> None:
    bench = Bench()
    bench.hear(report(address="node:8000"))
    bench.hear(report(sequence=2, phase=STOPPED))
    assert bench.registry.names() == {}
    assert bench.registry.resolved("node", ["10.0.0.9"]) == []


# --- bounds ---


def test_the_number_of_workers_is_bounded() -> None:
    bench = Bench(Config.model_validate({"limits": {"workers": 2}}))
    bench.start("w1", "w2")
    assert bench.hear(report("w3")) == []
    bench.take(bench.registry.load([report("w4")], bench.now))
    assert set(bench.statuses()) == {"w1", "w2"}
    assert bench.registry.refused == 2


def test_a_newcomer_takes_the_place_of_who_is_missing_for_longest() -> None:
    bench = Bench(Config.model_validate({"limits": {"workers": 2}}))
    bench.start("w1", "w2")
    bench.silence("w2")
    bench.run(1)
    bench.silence("w1")
    bench.run(1)
    updates = bench.hear(report("w3"))
    assert gone(updates) == ["w2"]
    assert bench.statuses() == {"w1": MISSING, "w3": READY}


def test_a_newcomer_takes_the_place_of_who_was_never_heard() -> None:
    bench = Bench(Config.model_validate({"limits": {"workers": 3}}), link=False)
    bench.link_alive = True
    bench.registry.link_up(bench.now)
    dead = [report(f"d{number}", address=f"10.0.2.{number}:1", report_interval_ms=3_600_000) for number in range(1, 9)]
    bench.take(bench.registry.load(dead, bench.now))
    assert bench.statuses() == {"d1": READY, "d2": READY, "d3": READY}
    bench.hear(report("d1", 2, address="10.0.2.1:1", report_interval_ms=3_600_000))
    assert gone(bench.hear(report("w1"))) == ["d2"]
    assert gone(bench.hear(report("w2", address="10.0.0.2:8000"))) == ["d3"]
    # Those that were heard stay.
    assert bench.hear(report("w3", address="10.0.0.3:8000")) == []
    bench.take(bench.registry.load(dead, bench.now))
    assert bench.statuses() == {"d1": READY, "w1": READY, "w2": READY}


def test_a_worker_that_came_back_keeps_its_place() -> None:
    bench = Bench(Config.model_validate({"limits": {"workers": 2}}))
    bench.start("w1", "w2")
    state = bench.beating["w1"]
    bench.silence("w1")
    bench.run(1)
    bench.resume(state)
    bench.run(0.1)
    assert bench.hear(report("w3")) == []
    assert bench.statuses() == {"w1": READY, "w2": READY}


def test_configured_workers_do_not_count_against_the_limit() -> None:
    config = static_config().model_copy(update={"limits": Config().limits.model_copy(update={"workers": 1})})
    bench = Bench(config)
    bench.hear(report("w2"))
    assert set(bench.statuses()) == {"w1", "w2"}


def test_a_beat_costs_one_record() -> None:
    bench = Bench()
    bench.start("w1", "w2")
    updates: list[WorkerState] = []
    for update in bench.run(1.0):
        assert isinstance(update, WorkerRecord)
        updates.append(update.state)
    assert len(updates) == 10  # two workers, five beats a second, nothing else
