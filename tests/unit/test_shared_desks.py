"""Two desks, as two processes have them, over the same workers and counts."""

import random
from pathlib import Path

import pytest
from fleet_kit import Recorded, record

from extproc.desk import Desk, Ticket
from extproc.gateway import Arrival, Decision, Demand, Gateway
from recursant.admission.queue import HoldQueue
from recursant.config.model import Config
from recursant.fleet.counts_file import CountsFile
from recursant.fleet.shared_slots import SharedSlots
from recursant.fleet.table import FleetTable
from recursant.problems import ApiProblem

CONFIG = Config.model_validate(
    {
        "agents": [
            {"agent_id": "critical", "model_family": "qwen", "class": "critical"},
            {"agent_id": "low", "model_family": "qwen", "class": "low"},
        ],
    }
)


class Client:
    """Somebody at one of the desks."""

    def __init__(self) -> None:
        self.outcome: Decision | ApiProblem | None = None

    def resume(self, outcome: Decision | ApiProblem) -> None:
        self.outcome = outcome


class Office:
    """What one process has."""

    def __init__(self, path: Path, process: int, slots: int) -> None:
        self.table = FleetTable(SharedSlots(CountsFile(path / "inflight", process=process, processes=2, columns=4)))
        self.table.upsert(record("w1", max_num_seqs=slots))
        self.gateway = Gateway(
            config=CONFIG, table=self.table, recorder=Recorded(), clock=lambda: 0.0, rng=random.Random(3)
        )
        self.desk = Desk(self.gateway, HoldQueue(100), lambda: None)

    def come(self, agent: str) -> Client:
        arrival = self.gateway.arrival({"x-agent-id": agent.encode(), "content-length": b"100"}, has_body=True)
        assert isinstance(arrival, Arrival)
        demand = self.gateway.demand(arrival, None)
        assert isinstance(demand, Demand)
        client = Client()
        outcome = self.desk.admit(client, demand, 0.0)
        if not isinstance(outcome, Ticket):
            client.outcome = outcome
        return client

    def done(self, client: Client) -> None:
        assert isinstance(client.outcome, Decision)
        self.table.release(client.outcome.rows[0], client.outcome.prompt_tokens, client.outcome.answer_tokens)
        self.desk.capacity_changed()
        self.desk.run(0.0)


def served(*clients: Client) -> list[bool]:
    return [isinstance(client.outcome, Decision) for client in clients]


@pytest.fixture
def offices(tmp_path: Path) -> tuple[Office, Office]:
    return Office(tmp_path, 1, slots=8), Office(tmp_path, 2, slots=8)


def test_the_places_of_a_worker_are_given_once(offices: tuple[Office, Office]) -> None:
    clients = [offices[number % 2].come("critical") for number in range(10)]
    assert served(*clients) == [True] * 8 + [False] * 2


def test_a_lower_class_does_not_overtake_who_is_held_in_the_other_process(offices: tuple[Office, Office]) -> None:
    one, two = offices
    running = [one.come("critical") for _ in range(8)]
    held = two.come("critical")
    assert served(held) == [False]
    for client in running[:2]:
        one.done(client)
        # Before the other process has looked: the place is not one of the lower class's.
        assert served(one.come("low")) == [False]
    two.desk.capacity_changed()
    two.desk.run(0.0)
    assert served(held) == [True]


def test_of_one_class_a_newcomer_may_come_first(offices: tuple[Office, Office]) -> None:
    """What docs/adr/0007 admits."""
    one, two = offices
    running = [one.come("critical") for _ in range(8)]
    held = two.come("critical")
    one.done(running[0])
    assert served(one.come("critical"), held) == [True, False]
