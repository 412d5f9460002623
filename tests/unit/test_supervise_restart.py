from recursant.supervise.restart import SERVICE, WORKER, Backoff, RestartPolicy


def test_delays_grow_and_are_bounded() -> None:
    backoff = Backoff(RestartPolicy(first_delay_s=1, max_delay_s=5, factor=2))
    assert [backoff.delay_after(0.1) for _ in range(5)] == [1, 2, 4, 5, 5]


def test_one_that_ran_well_starts_over() -> None:
    backoff = Backoff(RestartPolicy(first_delay_s=1, max_delay_s=100, factor=2, stable_after_s=30))
    assert [backoff.delay_after(ran) for ran in (1, 1, 29.9, 30, 1)] == [1, 2, 4, 1, 2]


def test_a_worker_stays_away_for_longer_than_three_beats() -> None:
    three_beats_s = 3 * 0.2
    assert WORKER.first_delay_s >= 2 > three_beats_s
    assert SERVICE.first_delay_s < 1
