"""What the recorder counts is what Prometheus reads."""

from collections import Counter

from prometheus_client import CollectorRegistry, generate_latest

from extproc.metrics import DECISION_BUCKETS, OTHER, ExtProcCollector, Gauges, Recorder
from extproc.transports.base import TransportStats


def scrape(recorder: Recorder, stats: TransportStats | None = None) -> dict[str, float]:
    """Every sample of a scrape by its name and labels, as Prometheus reads them."""
    gauges = Gauges(
        inflight={"w1": 3},
        workers={"ready": 2, "missing": 1},
        snapshot_age_s=0.25,
        redis_up=True,
        queue_depth={"low": 2},
        transport=stats or TransportStats(),
    )
    registry = CollectorRegistry()
    registry.register(ExtProcCollector(recorder, lambda: gauges))
    lines = generate_latest(registry).decode().splitlines()
    samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in samples}


def test_requests_and_fallbacks_are_counted_by_their_labels() -> None:
    recorder = Recorder()
    recorder.request_finished("chat-web", "w1", "ok")
    recorder.request_finished("chat-web", "w1", "ok")
    recorder.request_finished("chat-web", "w2", "error")
    recorder.fallback_taken("chat-web", "drop")
    samples = scrape(recorder)
    assert samples['recursant_requests_total{agent="chat-web",outcome="ok",worker="w1"}'] == 2
    assert samples['recursant_requests_total{agent="chat-web",outcome="error",worker="w2"}'] == 1
    assert samples['recursant_fallbacks_total{agent="chat-web",strategy="drop"}'] == 1


def test_decisions_fall_into_cumulative_buckets() -> None:
    recorder = Recorder()
    for seconds in (0.0001, 0.00015, 1.0):
        recorder.decided(seconds)
    samples = scrape(recorder)
    assert samples['recursant_decision_seconds_bucket{le="5e-05"}'] == 0
    # A bucket's bound belongs to it.
    assert samples['recursant_decision_seconds_bucket{le="0.0001"}'] == 1
    assert samples['recursant_decision_seconds_bucket{le="0.0002"}'] == 2
    assert samples[f'recursant_decision_seconds_bucket{{le="{DECISION_BUCKETS[-1]}"}}'] == 2
    assert samples['recursant_decision_seconds_bucket{le="+Inf"}'] == 3
    assert samples["recursant_decision_seconds_count"] == 3
    assert abs(samples["recursant_decision_seconds_sum"] - 1.00025) < 1e-9


def test_gauges_are_read_at_the_scrape() -> None:
    stats = TransportStats(streams_open=4, streams_total=9, connections_open=2, errors=Counter(protocol_error=1))
    samples = scrape(Recorder(), stats)
    assert samples['recursant_inflight_requests{worker="w1"}'] == 3
    assert samples['recursant_workers{state="missing"}'] == 1
    assert samples["recursant_snapshot_age_seconds"] == 0.25
    assert samples["recursant_redis_up"] == 1
    assert samples['recursant_queue_depth{class="low"}'] == 2
    assert samples["recursant_extproc_streams"] == 4
    assert samples["recursant_extproc_streams_begun_total"] == 9
    assert samples["recursant_extproc_connections"] == 2
    assert samples['recursant_extproc_errors_total{kind="protocol_error"}'] == 1


def test_series_are_bounded() -> None:
    recorder = Recorder(max_series=2)
    for worker in ("w1", "w2", "w3", "w4", "w1"):
        recorder.request_finished("chat-web", worker, "ok")
    for agent in ("a", "b", "c", "d"):
        recorder.fallback_taken(agent, "drop")
    assert recorder.requests() == {
        ("chat-web", "w1", "ok"): 2,
        ("chat-web", "w2", "ok"): 1,
        (OTHER, OTHER, "ok"): 2,
    }
    assert recorder.fallbacks() == {("a", "drop"): 1, ("b", "drop"): 1, (OTHER, "drop"): 2}


def test_a_departed_worker_takes_its_series_along() -> None:
    recorder = Recorder()
    recorder.request_finished("chat-web", "w1", "ok")
    recorder.request_finished("chat-web", "w2", "ok")
    recorder.forget_worker("w1")
    assert recorder.requests() == {("chat-web", "w2", "ok"): 1}


def test_deleted_agents_go_on_under_other_and_no_sum_falls() -> None:
    recorder = Recorder()
    for agent in ("chat-web", "gone", "default"):
        recorder.request_finished(agent, "w1", "ok")
        recorder.fallback_taken(agent, "drop")
    recorder.keep_agents(["chat-web"])
    # Requests that were under way when their agent was deleted.
    recorder.request_finished("gone", "w1", "ok")
    recorder.request_finished("gone", "w2", "ok")
    recorder.fallback_taken("gone", "drop")
    recorder.request_finished("chat-web", "w1", "ok")
    assert recorder.requests() == {
        ("chat-web", "w1", "ok"): 2,
        ("default", "w1", "ok"): 1,
        (OTHER, "w1", "ok"): 2,
        (OTHER, "w2", "ok"): 1,
    }
    assert recorder.fallbacks() == {("chat-web", "drop"): 1, ("default", "drop"): 1, (OTHER, "drop"): 2}
    # One that is applied again starts afresh.
    recorder.keep_agents(["chat-web", "gone"])
    recorder.request_finished("gone", "w1", "ok")
    assert recorder.requests()["gone", "w1", "ok"] == 1
