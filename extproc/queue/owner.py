"""The queue of a host, in the process that owns it. Pure: time, messages and places come in, replies go out.

The order is `HoldQueue`'s, as in a single process. A place that is granted stays counted here until the process that
asked for it counts it itself, or says that it does not take it, or is gone: nobody else is given it meanwhile.
"""

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass
from typing import Final

from extproc.queue.messages import Declined, Enter, Freed, Full, Granted, Leave, Placed, Refused, Reply, Request
from extproc.queue.place import Place, Places
from recursant.admission.queue import Held, HoldQueue
from recursant.agents.priority import PriorityClass
from recursant.routing.picker import Refusal

# How long a granted place is kept for a process that does not answer.
PROMISE_SECONDS: Final = 1.0

# What decides which workers somebody waits for: family, model, exclusive ones.
Wanted = tuple[str, str, frozenset[str]]


@dataclass(slots=True, eq=False)
class Entry:
    """A held request, and the process that it is held in."""

    process: int
    enter: Enter


@dataclass(frozen=True, slots=True)
class _Promise:
    place: Place
    until_s: float


class QueueOwner:
    """Keeps the queue and grants places.

    Args:
        queue: holds whoever must wait.
        places: finds places.
        send: carries a reply to a process.
        freed: how many places were given back on this host, ever.
        hanging: the processes that do not move now: nothing is granted to them.
        changed: told whenever others wait, or want other things, than before.
    """

    def __init__(
        self,
        queue: HoldQueue[Entry],
        places: Places,
        send: Callable[[int, Reply], None],
        *,
        freed: Callable[[], int],
        hanging: Callable[[], Collection[int]],
        changed: Callable[[], None],
    ) -> None:
        self._queue = queue
        self._places = places
        self._send = send
        self._freed = freed
        self._hanging = hanging
        self._changed = changed
        self._freed_seen = freed()
        self._held: dict[tuple[int, int], Held[Entry]] = {}
        self._promised: dict[tuple[int, int], _Promise] = {}
        self._wanted: dict[Wanted, int] = {}
        # Between the moments that its process counts a place and that we hear of it, it is counted twice. Whoever was
        # not placed then is tried again.
        self._doubtful = False

    def __len__(self) -> int:
        return len(self._queue)

    def set_limits(self, capacity: int, ageing_s: float) -> None:
        """See `HoldQueue.set_limits`."""
        self._queue.set_limits(capacity, ageing_s)

    def wanted(self) -> Set[Wanted]:
        """What those who wait want."""
        return self._wanted.keys()

    def busy(self) -> bool:
        """Does anybody wait, or has a place that is not taken yet?"""
        return bool(self._held or self._promised)

    # --- what processes say ---

    def receive(self, process: int, message: Request, now: float) -> None:
        """Take what a process says."""
        match message:
            case Enter():
                self._enter(process, message, now)
            case Leave(number):
                self._forget((process, number))
            case Placed(number):
                if self._settled((process, number)):
                    # That is no room: its process counts it from now on.
                    self._freed_seen += 1
                if self._doubtful:
                    self.serve(now)
            case Declined(number):
                self._settled((process, number))
                self.serve(now)
            case Freed():
                self.serve(now)
            case _:
                pass

    def begin(self, early: list[tuple[int, Request]], now: float) -> int:
        """Take up what another owner left, and all that came meanwhile; give back how many wait on.

        Whoever waited stands in the old order before anybody gets a place, and newcomers come after them.
        """
        waited = [(process, each) for process, each in early if isinstance(each, Enter) and each.waits_for]
        for process, enter in waited:
            self._hold(process, enter)
        later = [(process, each) for process, each in early if not (isinstance(each, Enter) and each.waits_for)]
        # Who left in the meantime does so before places are given.
        for process, each in later:
            if isinstance(each, Leave):
                self.receive(process, each, now)
        self.serve(now)
        for process, each in later:
            self.receive(process, each, now)
        return len(waited)

    def gone(self, process: int, now: float) -> None:
        """A process is gone, or speaks over another connection from now on: nothing of it is left here."""
        for key in [key for key in self._held if key[0] == process]:
            self._forget(key)
        for key in [key for key in self._promised if key[0] == process]:
            self._settled(key)
        self.serve(now)

    def stop(self) -> None:
        """Own the queue no more."""
        for key in list(self._held):
            self._forget(key)
        for key in list(self._promised):
            self._settled(key)

    # --- granting ---

    def serve(self, now: float) -> None:
        """Grant what places there are, in order. Call it when there may be room."""
        self._freed_seen = self._freed()
        for key in [key for key, promise in self._promised.items() if promise.until_s <= now]:
            self._settled(key)
        for over in self._queue.expired(now):
            # Its process tells the client.
            self._drop(over)
        doubtful = bool(self._promised)
        # Places only become fewer in here: what one did not find, another that needs the same will not find either.
        in_vain: set[tuple[object, ...]] = set()
        hanging = self._hanging()
        ready = (lambda each: each.item.process not in hanging) if hanging else None
        progress = True
        while progress:
            progress = False
            for held in self._queue.heads(now, ready):
                process, enter = held.item.process, held.item.enter
                count_as = self._queue.aged(held, now)
                need = _needed(enter, count_as)
                if need in in_vain:
                    continue
                found = self._places.find(enter, count_as, enter.held_fallback)
                if isinstance(found, Refusal):
                    in_vain.add(need)
                    continue
                self._queue.served(held)
                self._forget((process, enter.number))
                self._grant(process, enter.number, found, now)
                progress = True
                break
        self._doubtful = doubtful and bool(self._held)

    # --- inside ---

    def _hold(self, process: int, enter: Enter) -> None:
        """Put a request into the queue and leave it there for now."""
        self._forget((process, enter.number))
        entry = Entry(process, enter)
        held = Held(entry, enter.agent, enter.priority_class, enter.since_s, enter.until_s, enter.apart)
        out = self._queue.push(held)
        if out is not None:
            self._send(out.item.process, Full(out.item.enter.number))
        if out is held:
            return
        if out is not None:
            self._drop(out)
        self._held[process, enter.number] = held
        key = _wanted(enter)
        self._wanted[key] = self._wanted.get(key, 0) + 1
        self._changed()

    def _enter(self, process: int, enter: Enter, now: float) -> None:
        if len(self._queue) and self._freed() != self._freed_seen:
            # Whoever waits comes before a newcomer.
            self.serve(now)
        found = self._places.find(enter, None, enter.fallback)
        if isinstance(found, Refusal) and found in enter.waits_for:
            known = _wanted(enter) in self._wanted
            self._hold(process, enter)
            if (process, enter.number) not in self._held:
                return
            self._doubtful = self._doubtful or bool(self._promised)
            if known:
                return
            # Whoever gave a place back before it was told that somebody waits for it did not tell us.
            found = self._places.find(enter, None, enter.held_fallback)
            if isinstance(found, Refusal):
                return
            self._forget((process, enter.number))
        if isinstance(found, Refusal):
            self._send(process, Refused(enter.number, found))
        else:
            self._grant(process, enter.number, found, now)

    def _grant(self, process: int, number: int, place: Place, now: float) -> None:
        self._promised[process, number] = _Promise(place, now + PROMISE_SECONDS)
        granted = Granted(
            number,
            place.rows,
            place.model,
            place.fallback,
            place.shaped,
            place.affinity,
            place.cached_tokens,
            now,
        )
        self._send(process, granted)

    def _settled(self, key: tuple[int, int]) -> bool:
        promise = self._promised.pop(key, None)
        if promise is not None:
            self._places.release(promise.place)
        return promise is not None

    def _forget(self, key: tuple[int, int]) -> None:
        held = self._held.get(key)
        if held is not None:
            self._queue.remove(held)
            self._drop(held)

    def _drop(self, held: Held[Entry]) -> None:
        """It is out of the queue already."""
        enter = held.item.enter
        del self._held[held.item.process, enter.number]
        key = _wanted(enter)
        self._wanted[key] -= 1
        if not self._wanted[key]:
            del self._wanted[key]
        self._changed()


def _wanted(enter: Enter) -> Wanted:
    need = enter.need
    return need.family, need.model, need.exclusive


def _needed(enter: Enter, count_as: PriorityClass) -> tuple[object, ...]:
    """All that decides whether there is a place for a request."""
    need = enter.need
    return (
        *_wanted(enter),
        need.min_vram_mb,
        need.min_bandwidth_mb_s,
        need.prompt_tokens,
        need.expected_tokens,
        need.likely_tokens,
        need.context_length,
        count_as if enter.known else None,
        need.express,
        enter.shapes,
    )
