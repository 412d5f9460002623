"""Several expositions as one that Prometheus accepts."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from recursant.api.exposition import Part, merge


def text_of(*, workers: int, buckets: bool = False) -> str:
    registry = CollectorRegistry()
    Gauge("recursant_redis_up", "Up.", registry=registry).set(1)
    Gauge("recursant_workers", "Workers.", ["state"], registry=registry).labels("ready").set(workers)
    Counter("recursant_requests", 'Odd {labels}, "quoted".', ["agent"], registry=registry).labels('a"b {c}\\\n').inc()
    if buckets:
        Histogram("recursant_decision_seconds", "Time.", buckets=(0.1, 1.0), registry=registry).observe(0.5)
    return generate_latest(registry).decode()


def test_each_sample_says_whose_it_is() -> None:
    merged = merge([Part("api", text_of(workers=2)), Part("extproc", text_of(workers=3, buckets=True))])
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    assert {(s.labels["service"], s.value) for s in families["recursant_workers"].samples} == {
        ("api", 2),
        ("extproc", 3),
    }
    assert [s.labels for s in families["recursant_redis_up"].samples] == [{"service": "api"}, {"service": "extproc"}]
    requests = [s for s in families["recursant_requests"].samples if s.name == "recursant_requests_total"]
    assert requests[0].labels == {"service": "api", "agent": 'a"b {c}\\\n'}
    decision = [s for s in families["recursant_decision_seconds"].samples if s.name.endswith("_bucket")]
    assert [(s.labels["le"], s.value) for s in decision] == [("0.1", 0), ("1.0", 1), ("+Inf", 1)]


def test_a_family_is_one_block_with_one_head() -> None:
    parts = [Part(name, text_of(workers=1, buckets=True)) for name in ("api", "extproc", "xds")]
    lines = merge(parts).splitlines()
    heads = [line for line in lines if line.startswith("# TYPE ")]
    assert len(heads) == len(set(heads))
    # No sample of another family between two of the same.
    names = [line.split("{")[0].removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for line in lines]
    blocks = [name for index, name in enumerate(names) if not name.startswith("#") and names[index - 1] != name]
    assert len(blocks) == len(set(blocks))


def test_a_service_that_did_not_answer_is_left_out() -> None:
    own = text_of(workers=1)
    assert merge([Part("api", own), Part("xds", None)]) == merge([Part("api", own)])


def test_a_service_label_of_its_own_stays() -> None:
    text = '# TYPE up gauge\nup{service="xds"} 1.0\nup{a="x",service="extproc"} 0.0\nup{my_service="x"} 1\nup{} 2\n'
    assert merge([Part("api", text)]).splitlines()[1:] == [
        'up{service="xds"} 1.0',
        'up{a="x",service="extproc"} 0.0',
        'up{service="api",my_service="x"} 1',
        'up{service="api"} 2',
    ]


def test_a_label_value_that_looks_like_the_label_is_none() -> None:
    line = r'm{a="x,service=\"y\""} 1'
    assert merge([Part("api", line)]) == f'm{{service="api",{line[2:]}\n'


def test_samples_without_head_stand_for_themselves() -> None:
    assert (
        merge([Part("a", "x 1\n# a comment\n\ny 2\nx 3\n")]) == 'x{service="a"} 1\nx{service="a"} 3\ny{service="a"} 2\n'
    )
