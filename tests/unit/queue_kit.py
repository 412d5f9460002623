"""The processes of a host with one queue, their messages in the test's hands: delivered when it says, or lost."""

import random
from collections import deque
from pathlib import Path

from fleet_kit import PHI, QWEN, Recorded, record

from extproc.decision import Arrival, Decision, Demand
from extproc.desk import Desk, Ticket
from extproc.gateway import Gateway
from extproc.queue.board import Board
from extproc.queue.messages import Freed, Reply, Request, decode, encode
from extproc.queue.owner import Entry, QueueOwner
from extproc.queue.places import GatewayPlaces
from extproc.queue.pools import Pools
from extproc.shared_desk import SharedDesk
from recursant.admission.queue import HoldQueue
from recursant.config.model import Config
from recursant.fleet import record_locks
from recursant.fleet.counts_file import CountsFile
from recursant.fleet.shared_slots import SharedSlots
from recursant.fleet.table import FleetTable
from recursant.fleet.worker import WorkerRecord
from recursant.problems import ApiProblem
from recursant.routing.need import Need

AGENTS = (
    {"agent_id": "critical", "model_family": "qwen", "class": "critical"},
    {"agent_id": "high", "model_family": "qwen", "class": "high"},
    {"agent_id": "one", "model_family": "qwen", "class": "normal"},
    {"agent_id": "two", "model_family": "qwen", "class": "normal"},
    {"agent_id": "low", "model_family": "qwen", "class": "low"},
    {"agent_id": "phi", "model_family": "phi", "class": "normal"},
    {"agent_id": "drops", "model_family": "qwen", "class": "normal", "fallback_strategy": "drop"},
    {"agent_id": "degrades", "model_family": "qwen", "class": "normal", "fallback_strategy": "degrade_to_phi"},
    {"agent_id": "batch", "model_family": "qwen", "class": "critical", "batch_window_ms": 500},
    {"agent_id": "turns", "model_family": "qwen", "class": "low", "fallback_strategy": "round_robin"},
    {
        "agent_id": "retries",
        "model_family": "qwen",
        "class": "normal",
        "fallback_strategy": "queue_and_retry",
        "retry_max": 3,
        "retry_delay_ms": 2_000,
    },
)
# A batch goes when its window ends, in its process; who comes when is another matter.
NAMES = [str(agent["agent_id"]) for agent in AGENTS if "batch_window_ms" not in agent]
CONFIG = Config.model_validate({"agents": AGENTS, "routing": {"timeout_ms": 30_000}, "limits": {"held_requests": 6}})
PROCESSES = 3
COLUMNS = 16
AGEING_S = 10.0


class Client:
    """Somebody at one of the desks; answered once."""

    def __init__(self, agent: str) -> None:
        self.agent = agent
        self.outcome: Decision | ApiProblem | None = None
        self.ticket: Ticket | None = None

    def resume(self, outcome: Decision | ApiProblem) -> None:
        assert self.outcome is None, "answered twice"
        self.outcome = outcome

    def worker(self, process: "Single") -> str:
        """Where it was placed."""
        assert isinstance(self.outcome, Decision), self.outcome
        return process.table.worker_id(self.outcome.rows[0])

    @property
    def placed(self) -> bool:
        return isinstance(self.outcome, Decision)

    @property
    def said(self) -> str:
        """What became of it, in a word."""
        if self.outcome is None:
            return "waits"
        return "placed" if isinstance(self.outcome, Decision) else str(self.outcome.code)


class Single:
    """One process alone."""

    def __init__(self, config: Config, records: list[WorkerRecord], table: FleetTable | None = None) -> None:
        self.now = 0.0
        self.table = table or FleetTable()
        for each in records:
            self.table.upsert(each)
        self.gateway = Gateway(
            config=config,
            table=self.table,
            recorder=Recorded(),
            clock=lambda: self.now,
            rng=random.Random(3),
            wall=lambda: self.now,
        )
        self.desk = self._desk(HoldQueue(config.limits.held_requests, AGEING_S))

    def _desk(self, queue: HoldQueue[Ticket]) -> Desk:
        return Desk(self.gateway, queue, lambda: None)

    def come(self, agent: str, length: int = 100, session: str = "") -> Client:
        headers = {"x-agent-id": agent.encode(), "content-length": str(length).encode()}
        if session:
            headers["x-session-id"] = session.encode()
        arrival = self.gateway.arrival(headers, has_body=True)
        assert isinstance(arrival, Arrival)
        demand = self.gateway.demand(arrival, None)
        assert isinstance(demand, Demand)
        client = Client(agent)
        outcome = self.desk.admit(client, demand, self.now)
        if isinstance(outcome, Ticket):
            client.ticket = outcome
        else:
            client.resume(outcome)
        return client

    def done(self, client: Client) -> None:
        """A placed request ends."""
        decision = client.outcome
        assert isinstance(decision, Decision)
        self.table.release(decision.rows[0], decision.prompt_tokens, decision.answer_tokens)
        self.desk.capacity_changed()

    def leave(self, client: Client) -> None:
        """The client of a waiting request goes."""
        assert client.ticket is not None
        self.desk.leave(client.ticket)

    def run(self) -> None:
        self.desk.run(self.now)


class Process(Single):
    """One of several."""

    def __init__(self, host: "Host", number: int, config: Config, records: list[WorkerRecord]) -> None:
        self.host = host
        self.number = number
        count = host.size
        self.counts = CountsFile(host.path / "counts", process=number, processes=count, columns=COLUMNS)
        self.board = Board(host.path / "board", process=number, processes=count, columns=COLUMNS)
        self.slots = SharedSlots(self.counts)
        super().__init__(config, records, FleetTable(self.slots))
        self.pools = Pools(self.table)
        self.owner: QueueOwner | None = None

    def _desk(self, queue: HoldQueue[Ticket]) -> SharedDesk:
        self.shared = SharedDesk(self.gateway, queue, lambda: None, self)
        return self.shared

    # --- `extproc.shared_desk.Line` ---

    def waited_for(self, need: Need) -> bool:
        wanted = (need.family, need.model, need.exclusive)
        return not self.board.quiet() and self.board.waited_for(self.pools.columns(wanted))

    def send(self, message: Request) -> None:
        if self.host.owner is not None:
            self.host.to_owner[self.number].append(encode(message))

    def freed(self) -> None:
        if not self.board.quiet():
            self.send(Freed())

    def reported(self) -> None:
        if self.owner is not None:
            self.owner.serve(self.now)

    def set_limits(self, capacity: int, ageing_s: float) -> None:
        pass

    # --- as the owner ---

    def own(self, early: list[tuple[int, Request]]) -> None:
        queue: HoldQueue[Entry] = HoldQueue(self.gateway.config.limits.held_requests, self.host.ageing_s)
        self.owner = QueueOwner(
            queue,
            GatewayPlaces(self.gateway),
            self._reply,
            freed=self.slots.released_anywhere,
            hanging=lambda: self.host.hanging,
            changed=self._post,
        )
        self.owner.begin(early, self.now)

    def _reply(self, process: int, reply: Reply) -> None:
        if process in self.host.processes:
            self.host.from_owner[process].append(encode(reply))

    def _post(self) -> None:
        assert self.owner is not None
        columns = 0
        for wanted in self.owner.wanted():
            columns |= self.pools.columns(wanted)
        self.board.post(len(self.owner), columns)


class Host:
    """Several processes over the same workers, one of which owns the queue."""

    def __init__(
        self, path: Path, size: int, config: Config, records: list[WorkerRecord], *, ageing_s: float = AGEING_S
    ) -> None:
        self.path = path
        self.size = size
        self.ageing_s = ageing_s
        self.hanging: set[int] = set()
        self.owner: int | None = None
        self.to_owner: dict[int, deque[bytes]] = {each: deque() for each in range(1, size + 1)}
        self.from_owner: dict[int, deque[bytes]] = {each: deque() for each in range(1, size + 1)}
        self.processes: dict[int, Process] = {}
        for number in range(1, size + 1):
            self.processes[number] = Process(self, number, config, records)
        self._elect()

    @property
    def queue(self) -> QueueOwner:
        assert self.owner is not None
        owner = self.processes[self.owner].owner
        assert owner is not None
        return owner

    def _elect(self) -> None:
        self.owner = min(self.processes)
        self.processes[self.owner].board.settle(self.processes[self.owner].now)
        early: list[tuple[int, Request]] = []
        for number, process in self.processes.items():
            early += [(number, each) for each in process.shared.waiting()]
        self.processes[self.owner].own(early)

    def at(self, now: float) -> None:
        """It is later everywhere."""
        for process in self.processes.values():
            process.now = now

    def links(self) -> list[tuple[bool, int]]:
        """Where messages wait: towards the owner or from it, and of whom."""
        links = [(True, each) for each in self.processes if self.to_owner[each] and each not in self.hanging]
        return links + [(False, each) for each in self.processes if self.from_owner[each] and each not in self.hanging]

    def deliver(self, link: tuple[bool, int]) -> None:
        """One message."""
        inward, number = link
        if inward:
            message = decode(self.to_owner[number].popleft())
            self.queue.receive(number, message, self.processes[number].now)  # type: ignore[arg-type]
        else:
            reply = decode(self.from_owner[number].popleft())
            process = self.processes[number]
            process.shared.answered(reply, process.now)  # type: ignore[arg-type]

    def settle(self) -> None:
        """Deliver until nothing is under way; bounded, as a bug could go round and round."""
        for _ in range(10_000):
            links = self.links()
            if not links:
                return
            self.deliver(links[0])
        raise AssertionError("messages without an end")

    def kill(self, number: int) -> None:
        """As `kill -9`: what it said is read or not, what it held is gone, the others see both."""
        victim = self.processes.pop(number)
        # As the kernel does; the mapping stays, as somebody else's would.
        for fd in (victim.counts._file.fd, victim.board._file.fd):
            record_locks.give_back(fd, number)
        self.to_owner[number].clear()
        self.from_owner[number].clear()
        for process in self.processes.values():
            process.counts.reap()
        if number == self.owner:
            self.owner = None
            for each in self.processes:
                self.to_owner[each].clear()
                # What the owner said before its end still arrives.
                while self.from_owner[each]:
                    self.deliver((False, each))
            if self.processes:
                self._elect()
        elif self.owner is not None:
            self.queue.gone(number, self.processes[self.owner].now)

    def close(self) -> None:
        for process in self.processes.values():
            process.counts.close()
            process.board.close()


def one_worker_each(**slots: int) -> list[WorkerRecord]:
    """A worker for each family, so that who is placed depends on order alone and not on where."""
    models = {"qwen": QWEN, "phi": PHI}
    return [
        record(f"w{number}", models=[models[family]], max_num_seqs=count)
        for number, (family, count) in enumerate(slots.items(), 1)
    ]
