"""Desks of several processes over the same workers and counts, with one queue."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_kit import record
from queue_kit import CONFIG, PROCESSES, Client, Host, one_worker_each

from recursant.fleet.worker import WorkerStatus


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path, PROCESSES, CONFIG, one_worker_each(qwen=8, phi=2))
    yield host
    host.close()


def said(*clients: Client) -> list[str]:
    return [client.said for client in clients]


def test_the_places_of_a_worker_are_given_once(host: Host) -> None:
    clients = [host.processes[1 + number % 3].come("critical") for number in range(10)]
    host.settle()
    assert said(*clients) == ["placed"] * 8 + ["waits"] * 2


@pytest.mark.parametrize("newcomer", ["low", "critical"])
def test_a_newcomer_elsewhere_does_not_overtake_who_is_held(host: Host, newcomer: str) -> None:
    one, two, three = host.processes.values()
    running = [one.come("critical") for _ in range(8)]
    held = two.come("critical")
    host.settle()
    one.done(running[0])
    # Before anybody is told: the place is free to see for everybody.
    late = three.come(newcomer)
    host.settle()
    assert said(held, late) == ["placed", "waits"]


def test_whoever_wants_what_nobody_waits_for_is_placed_at_once(host: Host) -> None:
    one, two, _ = host.processes.values()
    for _ in range(9):
        one.come("critical")
    host.settle()
    assert two.come("phi").placed
    assert not two.board.quiet()


def test_agents_of_a_class_take_turns_over_all_processes(host: Host) -> None:
    one, two, three = host.processes.values()
    # Normal may fill nine tenths of 8 slots, rounded down.
    running = [one.come("one") for _ in range(7)]
    crowd = [process.come("one") for process in (one, two, three)]
    other = three.come("two")
    host.settle()
    assert said(*crowd, other) == ["waits"] * 4
    one.done(running[0])
    one.done(running[1])
    host.settle()
    assert said(*crowd, other) == ["placed", "waits", "waits", "placed"]


def test_the_bound_holds_for_the_host(host: Host) -> None:
    for _ in range(8):
        host.processes[1].come("critical")
    held = []
    for number in range(7):
        held.append(host.processes[1 + number % 3].come("critical"))
        host.settle()
    assert said(*held) == ["waits"] * 6 + ["queue_full"]


def test_those_that_the_last_owner_kept_stand_in_their_old_order(host: Host) -> None:
    one, two, three = host.processes.values()
    running = [two.come("critical") for _ in range(8)]
    held = []
    for second, process in enumerate((three, two, three, two)):
        host.at(second)
        held.append(process.come("critical"))
        host.settle()
    lost = one.come("critical")
    host.kill(1)
    assert host.owner == 2
    host.settle()
    for number in range(4):
        two.done(running[number])
        host.settle()
        assert said(*held) == ["placed"] * (number + 1) + ["waits"] * (3 - number)
    assert lost.outcome is None


def test_a_process_that_hangs_is_granted_nothing_and_waits_on(host: Host) -> None:
    one, two, three = host.processes.values()
    running = [one.come("critical") for _ in range(8)]
    stuck = two.come("critical")
    moves = three.come("critical")
    host.settle()
    host.hanging.add(2)
    one.done(running[0])
    host.settle()
    assert said(stuck, moves) == ["waits", "placed"]
    host.hanging.clear()
    one.done(running[1])
    host.settle()
    assert said(stuck) == ["placed"]


def test_a_place_that_its_process_does_not_take_is_given_to_the_next(host: Host) -> None:
    one, two, three = host.processes.values()
    running = [one.come("critical") for _ in range(8)]
    stuck = two.come("critical")
    waits = three.come("critical")
    host.settle()
    one.done(running[0])
    host.deliver((True, 1))
    host.hanging.add(2)
    host.settle()
    assert said(stuck, waits) == ["waits", "waits"]
    host.at(1.5)
    host.queue.serve(1.5)
    host.settle()
    assert said(waits) == ["placed"]
    # What it was granted is too old to be taken; it waits again, at its old place.
    host.hanging.clear()
    host.settle()
    assert said(stuck) == ["waits"]
    one.done(running[1])
    host.settle()
    assert said(stuck) == ["placed"]


def test_a_deadline_holds_without_the_owner(host: Host) -> None:
    one, two, _ = host.processes.values()
    for _ in range(8):
        one.come("critical")
    held = two.come("critical")
    host.settle()
    host.hanging.add(1)
    host.at(30.0)
    two.run()
    assert said(held) == ["deadline_exceeded"]


def test_a_place_at_a_worker_that_is_not_known_here_goes_back_until_there_is_news(host: Host) -> None:
    one, two, three = host.processes.values()
    running = [one.come("critical") for _ in range(8)]
    stranded = two.come("critical")
    host.settle()
    # Two has heard that the worker drains, and the owner has not.
    known = two.table.record(0)
    assert known is not None
    two.table.upsert(dataclasses.replace(known, status=WorkerStatus.DRAINING))
    one.done(running[0])
    host.settle()
    assert said(stranded) == ["waits"]
    assert three.come("critical").placed
    two.table.upsert(known)
    two.desk.capacity_changed(lambda: None)
    host.settle()
    one.done(running[1])
    host.settle()
    assert said(stranded) == ["placed"]


def test_a_batch_stands_in_line_where_somebody_waits(host: Host) -> None:
    one, two, _ = host.processes.values()
    running = [one.come("batch") for _ in range(8)]
    one.now = two.now = 1.0
    one.run()
    assert said(*running) == ["placed"] * 8
    held = one.come("critical")
    host.settle()
    batch = [two.come("batch") for _ in range(2)]
    host.at(2.0)
    one.done(running[0])
    two.run()
    host.settle()
    assert said(held, *batch) == ["placed", "waits", "waits"]
    one.done(running[1])
    one.done(running[2])
    host.settle()
    assert said(*batch) == ["placed", "placed"]


def test_a_session_finds_its_worker_again_after_it_was_held(tmp_path: Path) -> None:
    host = Host(tmp_path, PROCESSES, CONFIG, [record(name, max_num_seqs=1) for name in ("w1", "w2")])
    one, two, _ = host.processes.values()
    # Only this process knows where the session is.
    first = two.come("critical", session="s")
    worker = first.worker(two)
    [other] = {"w1", "w2"} - {worker}
    for _ in range(10):
        two.done(first)
        first = two.come("critical", session="s")
        assert first.worker(two) == worker
        running = one.come("critical")
        assert running.worker(one) == other
        held = two.come("critical", session="s")
        host.settle()
        assert said(held) == ["waits"]
        one.done(running)
        two.done(first)
        host.settle()
        assert held.worker(two) == worker
        first = held
    two.done(first)
    assert [process.table.in_flight_total() for process in host.processes.values()] == [0, 0, 0]
    host.close()


def test_a_client_that_leaves_while_its_place_is_on_the_way_leaves_it_to_others(host: Host) -> None:
    one, two, three = host.processes.values()
    running = [one.come("critical") for _ in range(8)]
    hasty, patient = two.come("critical"), three.come("critical")
    host.settle()
    one.done(running[0])
    host.deliver((True, 1))
    two.leave(hasty)
    host.settle()
    assert said(hasty, patient) == ["waits", "placed"]
    assert one.table.in_flight_total() + two.table.in_flight_total() + three.table.in_flight_total() == 8
