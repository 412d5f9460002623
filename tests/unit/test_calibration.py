import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recursant.admission.calibration import (
    DEFAULT_BYTES_PER_TOKEN,
    LEAST_BYTES_PER_TOKEN,
    MAX_FAMILIES,
    MIN_REQUESTS,
    MOST_BYTES_PER_TOKEN,
    MOST_OTHERS,
    SMOOTHING,
    Calibration,
)


class Worker:
    """A worker that counts as vLLM does, and the process that sends to it."""

    def __init__(self, calibration: Calibration, worker_id: str = "w1") -> None:
        self.calibration = calibration
        self.worker_id = worker_id
        self.incarnation = "first"
        self.requests = 0
        self.tokens = 0
        self.answers: int | None = 0
        self.report()

    def report(self) -> None:
        self.calibration.reported(self.worker_id, self.incarnation, self.requests, self.tokens, self.answers)

    def answer(self, bound: int, tokens: int, *, times: int = MIN_REQUESTS) -> None:
        """Serve requests whose answers are of interest, and tell."""
        for _ in range(times):
            if self.answers is not None:
                self.answers += tokens
            self.serve("qwen", 400, 100, bound=bound)
        self.report()

    def serve(
        self, family: str, body_bytes: int, tokens: int, *, times: int = 1, through_us: bool = True, bound: int = 256
    ) -> None:
        for _ in range(times):
            self.requests += 1
            self.tokens += tokens
            if through_us:
                self.calibration.finished(self.worker_id, family, body_bytes, bound)


def test_before_anything_is_measured_four_bytes_are_a_token() -> None:
    calibration = Calibration()
    assert calibration.bytes_per_token("qwen") == 4.0
    assert [calibration.tokens("qwen", length) for length in (0, 3, 4, 4_000)] == [0, 0, 1, 1_000]
    assert calibration.estimate("qwen") is None


def test_the_first_window_is_taken_as_it_is_and_later_ones_weigh_a_fifth() -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    worker.serve("qwen", 300, 100, times=MIN_REQUESTS)
    worker.report()
    first = calibration.estimate("qwen")
    assert first is not None
    # 3 bytes a token, where 4 were assumed: the estimate was a quarter too low.
    assert (first.bytes_per_token, first.error, first.windows) == (3.0, pytest.approx(0.25), 1)
    assert calibration.tokens("qwen", 300) == 100
    worker.serve("qwen", 800, 100, times=MIN_REQUESTS)
    worker.report()
    second = calibration.estimate("qwen")
    assert second is not None
    assert second.bytes_per_token == pytest.approx(3 + SMOOTHING * 5)
    assert second.error == pytest.approx(0.25 + SMOOTHING * (5 / 3 - 0.25))
    assert second.windows == 2
    assert calibration.bytes_per_token("phi") == DEFAULT_BYTES_PER_TOKEN


def test_long_prompts_weigh_as_much_as_they_are_long() -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    # Bodies that are hardly more than their braces.
    for _ in range(20):
        worker.serve("qwen", 160, 10, times=MIN_REQUESTS)
        worker.report()
    assert calibration.bytes_per_token("qwen") == pytest.approx(16)
    worker.serve("qwen", 4_000, 1_000, times=MIN_REQUESTS)
    worker.report()
    # 40 tokens of the old sum of 50 are left, and 1,000 have come.
    assert calibration.bytes_per_token("qwen") == pytest.approx((16 * 40 + 4_000) / 1_040)


def test_too_little_evidence_says_nothing() -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    worker.serve("qwen", 300, 100, times=MIN_REQUESTS - 1)
    worker.report()
    assert calibration.estimates() == {}
    # It is kept for the next report.
    worker.serve("qwen", 300, 100)
    worker.report()
    assert calibration.bytes_per_token("qwen") == 3.0


def test_requests_that_came_past_us_do_no_harm_where_they_are_alike() -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    worker.serve("qwen", 600, 100, times=MIN_REQUESTS)
    worker.serve("qwen", 600, 100, times=3 * MIN_REQUESTS, through_us=False)
    worker.report()
    assert calibration.bytes_per_token("qwen") == 6.0


def test_a_worker_that_serves_mostly_others_teaches_nothing() -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    worker.serve("qwen", 600, 100, times=MIN_REQUESTS)
    worker.serve("qwen", 10, 1, times=MIN_REQUESTS * MOST_OTHERS, through_us=False)
    worker.report()
    worker.serve("qwen", 600, 100, times=MIN_REQUESTS)
    worker.report()
    # The window with the others is gone, the next one is clean.
    assert calibration.bytes_per_token("qwen") == 6.0


def test_a_window_of_several_families_teaches_nothing() -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    worker.serve("qwen", 600, 100, times=MIN_REQUESTS)
    worker.serve("phi", 300, 100)
    worker.report()
    assert calibration.estimates() == {}
    worker.serve("phi", 300, 100, times=MIN_REQUESTS)
    worker.report()
    assert set(calibration.estimates()) == {"phi"}


def test_a_worker_that_does_not_count_teaches_nothing_and_costs_nothing() -> None:
    calibration = Calibration()
    for _ in range(1_000):
        calibration.finished("silent", "qwen", 500, 256)
    assert calibration.estimates() == {}
    worker = Worker(calibration, "stuck")
    for _ in range(MIN_REQUESTS * MOST_OTHERS):
        calibration.finished("stuck", "qwen", 500, 256)
    worker.report()
    # It counts now: what was before is forgotten.
    worker.serve("qwen", 500, 100, times=MIN_REQUESTS)
    worker.report()
    assert calibration.bytes_per_token("qwen") == 5.0


def test_a_worker_that_left_or_came_back_counts_from_zero() -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    worker.serve("qwen", 600, 100, times=MIN_REQUESTS)
    worker.incarnation, worker.requests, worker.tokens = "second", 0, 0
    worker.report()
    worker.serve("qwen", 300, 100, times=MIN_REQUESTS)
    worker.report()
    assert calibration.bytes_per_token("qwen") == 3.0
    calibration.forget("w1")
    worker.serve("qwen", 600, 100, times=MIN_REQUESTS)
    worker.report()
    assert calibration.estimate("qwen").windows == 1  # type: ignore[union-attr]


def test_counters_that_fall_begin_a_new_window() -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    worker.serve("qwen", 600, 100, times=MIN_REQUESTS)
    worker.report()
    worker.requests, worker.tokens = 0, 0
    worker.report()
    worker.serve("qwen", 600, 100, times=MIN_REQUESTS)
    worker.report()
    assert calibration.bytes_per_token("qwen") == pytest.approx(6.0)


def test_families_are_bounded() -> None:
    calibration = Calibration()
    for number in range(MAX_FAMILIES + 5):
        worker = Worker(calibration, f"w{number}")
        worker.serve(f"family-{number}", 300, 100, times=MIN_REQUESTS)
        worker.report()
    assert len(calibration.estimates()) == MAX_FAMILIES


_STEPS = st.one_of(
    st.tuples(
        st.just("serve"), st.sampled_from(["a", "b"]), st.integers(0, 10**8), st.integers(0, 10**6), st.integers(1, 40)
    ),
    st.tuples(st.just("past"), st.just("a"), st.integers(0, 10**8), st.integers(0, 10**6), st.integers(1, 300)),
    st.tuples(st.just("report")),
    st.tuples(st.just("restart")),
    st.tuples(st.just("lie"), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("forget")),
)


@given(st.lists(_STEPS, max_size=60))
def test_whatever_is_reported_the_ratio_stays_within_its_bounds(steps: list[tuple[object, ...]]) -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    for step in steps:
        match step:
            case ("serve" | "past" as how, str(family), int(length), int(tokens), int(times)):
                worker.serve(family, length, tokens, times=times, through_us=how == "serve")
            case ("report",):
                worker.report()
            case ("restart",):
                worker.incarnation += "x"
                worker.requests = worker.tokens = worker.answers = 0
            case ("lie", int(requests), int(tokens)):
                calibration.reported("w1", worker.incarnation, requests, tokens)
            case ("forget",):
                calibration.forget("w1")
        for family in ("a", "b"):
            ratio = calibration.bytes_per_token(family)
            assert LEAST_BYTES_PER_TOKEN <= ratio <= MOST_BYTES_PER_TOKEN
            assert 0 <= calibration.tokens(family, 1_000) <= 1_000
        for estimate in calibration.estimates().values():
            assert math.isfinite(estimate.error)
            assert estimate.error >= 0


@given(st.floats(1.5, 12), st.lists(st.integers(10, 5_000), min_size=60, max_size=60), st.integers(1, 7))
def test_it_comes_to_the_true_ratio(true: float, prompts: list[int], every: int) -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    for number, tokens in enumerate(prompts):
        worker.serve("qwen", round(tokens * true), tokens)
        if number % every == 0:
            worker.report()
    # Every window sees the same ratio, up to the rounding of a body to whole bytes.
    assert calibration.bytes_per_token("qwen") == pytest.approx(true, rel=0.05)


@given(st.one_of(st.just(1.0), st.floats(1.001, 16)), st.integers(0, 10**9))
def test_a_body_made_for_a_number_of_tokens_is_read_as_that_number(ratio: float, tokens: int) -> None:
    calibration = Calibration()
    calibration._bytes_per_token["qwen"] = ratio
    assert calibration.tokens("qwen", math.ceil(tokens * ratio)) == tokens


# --- answers ---


def test_before_anything_is_measured_an_answer_is_what_is_expected_without_a_bound() -> None:
    calibration = Calibration()
    assert [calibration.answer_tokens("qwen", bound) for bound in (None, 8_000, 300, 20)] == [256, 256, 256, 20]


def test_bounds_that_nobody_uses_up_are_not_believed() -> None:
    calibration = Calibration()
    Worker(calibration).answer(bound=4_000, tokens=200)
    # A twentieth of the bound; and no less than the mean, whatever the bound.
    assert [calibration.answer_tokens("qwen", bound) for bound in (4_000, 8_000, 1_000, 100)] == [200, 400, 200, 100]
    assert calibration.answer_tokens("qwen", None) == 200
    assert calibration.answer_tokens("phi", None) == 256


def test_bounds_that_are_used_up_are_believed_however_short_most_answers_are() -> None:
    calibration = Calibration()
    Worker(calibration).answer(bound=10, tokens=10)
    assert [calibration.answer_tokens("qwen", bound) for bound in (10, 1_500)] == [10, 1_500]


def test_newer_answers_weigh_a_fifth() -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    worker.answer(bound=1_000, tokens=100)
    worker.answer(bound=1_000, tokens=600)
    assert calibration.answer_tokens("qwen", 1_000) == 100 + SMOOTHING * 500
    # More than was asked for: several answers to one request. None is taken to be longer than its bound.
    worker.answer(bound=100, tokens=300)
    assert calibration.answer_tokens("qwen", 100) == 100


def test_a_worker_that_tells_of_prompts_alone_teaches_nothing_about_answers() -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    worker.answers = None
    worker.report()
    worker.answer(bound=4_000, tokens=200)
    found = calibration.estimate("qwen")
    assert found is not None
    assert (found.bytes_per_token, found.answer_tokens, found.answer_share) == (4.0, None, None)
    assert calibration.answer_tokens("qwen", 4_000) == 256
    # It tells from now on: the window that began without is not used.
    worker.answers = 5_000
    worker.report()
    worker.answer(bound=4_000, tokens=200)
    worker.answer(bound=4_000, tokens=200)
    assert calibration.answer_tokens("qwen", 4_000) == 200


@given(
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 5_000)), max_size=20),
    st.none() | st.integers(1, 10_000),
)
def test_no_answer_is_taken_to_be_longer_than_its_bound(served: list[tuple[int, int]], bound: int | None) -> None:
    calibration = Calibration()
    worker = Worker(calibration)
    for given_bound, tokens in served:
        worker.answer(given_bound, tokens)
    likely = calibration.answer_tokens("qwen", bound)
    longest = max((tokens for _, tokens in served), default=0)
    assert 0 <= likely <= max(256, longest, 256 if bound is None else bound)
    assert bound is None or likely <= bound
