from fleet_kit import PHI, QWEN, record

from recursant.fleet.worker import Model, WorkerStatus
from xds_server.resources.breakers import (
    DEFAULT_MAX_QUEUE,
    LARGEST_WORKER,
    SMALLEST_FLEET,
    SMALLEST_WORKER,
    breakers_for,
)
from xds_server.resources.offer import Offer, offer_of

OTHER_QWEN = Model("Qwen/Qwen3-8B", "qwen")


def test_auto_is_the_model_that_most_workers_serve() -> None:
    workers = [record("w1"), record("w2", models=(OTHER_QWEN,)), record("w3"), record("w4", models=(PHI,))]
    assert offer_of(workers, "qwen") == Offer(
        names=(QWEN.name, OTHER_QWEN.name), auto=QWEN.name, everywhere=False, priority_scheduling=False
    )


def test_of_two_as_common_the_first_by_name() -> None:
    workers = [record("w1", models=(OTHER_QWEN,)), record("w2")]
    assert offer_of(workers, "qwen").auto == min(QWEN.name, OTHER_QWEN.name)
    assert offer_of(workers[::-1], "qwen") == offer_of(workers, "qwen")


def test_a_family_nobody_serves() -> None:
    assert offer_of([record("w1")], "mistral") == Offer((), None, everywhere=False, priority_scheduling=False)


def test_exclusive_and_unusable_workers_offer_nothing() -> None:
    workers = [record("w1", exclusive=True), record("w2", status=WorkerStatus.MISSING), record("w3", endpoint=None)]
    assert offer_of(workers).names == ()


def test_adapters_are_names_too() -> None:
    assert offer_of([record("w1", lora_adapters=["sql"])], "qwen").names == (QWEN.name, "sql")


def test_priority_only_where_every_worker_schedules_by_it() -> None:
    with_it, without = record("w1", priority_scheduling=True), record("w2")
    assert offer_of([with_it], "qwen").priority_scheduling
    assert not offer_of([with_it, without], "qwen").priority_scheduling
    # Of the family: others do not matter.
    assert offer_of([with_it, record("w3", models=(PHI,))], "qwen").priority_scheduling


def test_everywhere_is_about_every_worker() -> None:
    assert offer_of([record("w1"), record("w2")]).everywhere
    assert not offer_of([record("w1"), record("w2", models=(PHI,))]).everywhere
    assert offer_of([record("w1", models=(QWEN, PHI)), record("w2", models=(PHI,))]).auto == PHI.name
    assert offer_of([record("w1", models=(QWEN, PHI)), record("w2", models=(PHI,))]).everywhere


# --- circuit breakers, sized to the workers ---


def test_breakers_have_a_floor() -> None:
    assert breakers_for([]).fleet == SMALLEST_FLEET
    assert breakers_for([record("w1", max_queue=1)]).worker == SMALLEST_WORKER


def test_breakers_follow_what_the_workers_want_to_hold() -> None:
    # Twice 100 workers x 64, up to a power of two.
    many = breakers_for([record(f"w{index}", max_queue=64) for index in range(100)])
    assert many.fleet == 16_384
    # Twice the longest queue of one worker.
    assert breakers_for([record("w1", max_num_seqs=1_000), record("w2", max_queue=3)]).worker == 2_048
    assert breakers_for([record("w1")]).worker == 2 * DEFAULT_MAX_QUEUE


def test_one_worker_more_does_not_move_them() -> None:
    fleet = [record(f"w{index}") for index in range(100)]
    assert breakers_for(fleet[:99]) == breakers_for(fleet)


def test_a_worker_that_claims_too_much_does_not_spoil_the_cluster() -> None:
    claims = [record(f"w{n}", max_queue=4_294_967_295) for n in range(3)]
    breakers = breakers_for(claims)
    assert breakers.worker == 2 * LARGEST_WORKER
    assert breakers.fleet < 1 << 32
