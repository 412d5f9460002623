"""The registry under any order of events: what must always hold."""

from collections.abc import Iterable

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from registry_kit import report

from recursant.config.model import Config
from recursant.fleet.registry import Gone, Registry, Update
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState

LIMIT = 4
WINDOW = 0.6
GRACE = 2
# Two more than there is room for, one of them at a host name.
WORKERS = [f"w{number}" for number in range(LIMIT + 2)]
STATIC = "static"
worker_ids = st.sampled_from(WORKERS)


class RegistryMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        config = Config.model_validate(
            {
                "limits": {"workers": LIMIT},
                "liveness": {"grace_ms": GRACE * 1_000, "forget_after_ms": 20_000},
                "workers": [{"host": "10.0.9.9", "id": STATIC, "scrape_interval_ms": 200}],
            }
        )
        self.registry = Registry(config)
        self.now = 100.0
        self.up = False
        self.was_down = False
        self.heard = self.healed = float("-inf")
        # Worker -> its incarnation and the sequence of its last report; and that report, as the hash has it.
        self.process: dict[str, tuple[int, int]] = {}
        self.said: dict[str, WorkerState] = {}
        self.heard_of: dict[str, float] = {}
        # What a subscriber would know.
        self.mirror = dict(self.registry.records)

    # --- helpers ---

    def take(self, updates: Iterable[Update]) -> None:
        for update in updates:
            if isinstance(update, Gone):
                del self.mirror[update.worker_id]
            else:
                self.mirror[update.worker_id] = update

    def hear(self) -> None:
        if self.up and self.now - self.heard > 0.6:
            self.healed = self.now
        self.heard = self.now

    def next_report(self, worker_id: str) -> WorkerState:
        incarnation, sequence = self.process.get(worker_id, (1, 0))
        self.process[worker_id] = (incarnation, sequence + 1)
        host = "node" if worker_id == WORKERS[-1] else f"10.0.0.{WORKERS.index(worker_id) + 1}"
        return report(worker_id, sequence + 1, address=f"{host}:8000", incarnation=str(incarnation))

    # --- what happens ---

    @initialize()
    def connect(self) -> None:
        self.link_up()

    @rule(seconds=st.sampled_from([0.05, 0.1, 0.3, 0.7, 3.0]), alive=st.booleans())
    def time_passes(self, seconds: float, alive: bool) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.05
            if alive and self.up:
                self.hear()
                self.registry.heard(self.now)
            self.take(self.registry.tick(self.now))

    @rule(worker_id=worker_ids)
    def beats(self, worker_id: str) -> None:
        others = {key: value for key, value in self.registry.records.items() if key != worker_id}
        had_room = worker_id in self.registry.records or len(self.registry.records) < LIMIT + 1
        missing = [key for key, value in others.items() if value.status is WorkerStatus.MISSING and key != STATIC]
        self.hear()
        self.said[worker_id] = self.next_report(worker_id)
        self.take(self.registry.observe(self.said[worker_id], self.now))
        record = self.registry.records.get(worker_id)
        if had_room or missing:
            assert record is not None
            assert record.status is (WorkerStatus.READY if record.endpoint else WorkerStatus.UNRESOLVED)
            assert record.last_beat == self.now
        else:
            assert record is None
        if record is not None:
            self.heard_of[worker_id] = self.now
        for key, before in others.items():
            after = self.registry.records.get(key)
            assert after is before or (after is None and before.status is WorkerStatus.MISSING)

    @rule(worker_id=worker_ids)
    def says_it_again(self, worker_id: str) -> None:
        state = self.said.get(worker_id)
        if state is not None and worker_id in self.registry.records:
            self.hear()
            assert self.registry.observe(state, self.now) == []

    @rule(worker_id=worker_ids)
    def restarts(self, worker_id: str) -> None:
        if worker_id in self.process:
            self.process[worker_id] = (self.process[worker_id][0] + 1, 0)

    @rule(worker_id=worker_ids)
    def stops(self, worker_id: str) -> None:
        state = self.next_report(worker_id)
        state.phase = WorkerPhase.WORKER_PHASE_STOPPED
        self.said.pop(worker_id, None)
        known = self.registry.records.get(worker_id)
        self.hear()
        self.take(self.registry.observe(state, self.now))
        if known is not None and known.state.incarnation == state.incarnation:
            assert worker_id not in self.registry.records
        self.restarts(worker_id)

    @rule(lost=st.sets(worker_ids))
    def is_loaded(self, lost: set[str]) -> None:
        if not self.up:
            return
        self.hear()
        before = {key: (value.state.incarnation, value.state.sequence) for key, value in self.registry.records.items()}
        states = [state for key, state in self.said.items() if key not in lost]
        self.take(self.registry.load(states, self.now))
        assert set(before) <= set(self.registry.records)
        for key, record in self.registry.records.items():
            if key != STATIC and (record.state.incarnation, record.state.sequence) != before.get(key):
                self.heard_of[key] = self.now

    @rule()
    def link_down(self) -> None:
        self.up = False
        self.was_down = True
        self.take(self.registry.link_down(self.now))

    @rule()
    def link_up(self) -> None:
        if self.was_down and not self.up:
            self.healed = self.now
        self.up = True
        self.heard = self.now
        self.registry.link_up(self.now)

    @rule(addresses=st.lists(st.sampled_from(["10.0.5.1", "10.0.5.2", "::1"])))
    def is_resolved(self, addresses: list[str]) -> None:
        self.take(self.registry.resolved("node", addresses))

    # --- what holds ---

    @invariant()
    def subscribers_know_everything(self) -> None:
        assert self.mirror == dict(self.registry.records)

    @invariant()
    def is_bounded(self) -> None:
        assert len(self.registry.records) <= LIMIT + 1
        assert STATIC in self.registry.records

    @invariant()
    def only_dialable_workers_are_ready(self) -> None:
        for record in self.registry.records.values():
            assert record.status is not WorkerStatus.READY or record.endpoint is not None

    @invariant()
    def nobody_is_ready_after_a_silence_that_was_heard(self) -> None:
        self.take(self.registry.tick(self.now))
        if not self.up or self.heard < self.healed + GRACE:
            return
        silences: dict[str, float] = {}
        for worker_id, record in self.registry.records.items():
            if worker_id != STATIC and record.status is not WorkerStatus.MISSING and record.last_beat is not None:
                silences[worker_id] = self.heard - max(self.heard_of[worker_id], self.healed)
        late = sum(silence >= WINDOW / 2 for silence in silences.values())
        if late >= 2 and 2 * late > len(silences):
            return
        assert all(silence < WINDOW + 1e-6 for silence in silences.values())

    @invariant()
    def nobody_is_missing_before_its_window_is_over(self) -> None:
        for worker_id, record in self.registry.records.items():
            if _reported_to_us(record) and record.status is WorkerStatus.MISSING:
                assert self.now - self.heard_of[worker_id] > WINDOW - 1e-6


def _reported_to_us(record: WorkerRecord) -> bool:
    return record.worker_id != STATIC and record.last_beat is not None


RegistryMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestRegistry = RegistryMachine.TestCase
