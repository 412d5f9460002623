"""Asking the name service: how often, how many at once, and for whom no longer."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from recursant.fleet.resolve import MAX_IDLE_LOOKUPS, MAX_LOOKUPS, HostResolver

PATIENCE_S = 20.0


class NameService:
    """Answers every name with one address, when it is let; notes who asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.running = 0
        self.cancelled = 0
        self.open = asyncio.Event()
        self.open.set()

    async def getaddrinfo(self, host: str, port: object, **options: Any) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        self.running += 1
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return [(socket.AF_INET6, options["type"], 6, "", ("fd00::1", 0, 0, 0))]


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> NameService:
    monkeypatch.setattr("recursant.fleet.resolve.REFRESH_S", 3_600.0)
    service = NameService()
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", service.getaddrinfo)
    return service


class Asker:
    def __init__(self, names: list[str]) -> None:
        # Name -> whether anybody lives there.
        self.names = dict.fromkeys(names, True)
        self.answers: list[tuple[str, Sequence[str]]] = []
        self.resolver = HostResolver(lambda: self.names, lambda name, found: self.answers.append((name, found)))


@contextlib.asynccontextmanager
async def asking(*names: str) -> AsyncIterator[Asker]:
    asker = Asker(list(names))
    task = asyncio.create_task(asker.resolver.run())
    try:
        yield asker
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert task.cancelled()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)


async def test_asks_for_every_name_and_for_new_ones_at_once(service: NameService) -> None:
    async with asking("a", "b") as asker:
        await until(lambda: len(asker.answers) == 2)
        assert sorted(asker.answers) == [("a", ["fd00::1"]), ("b", ["fd00::1"])]
        asker.names["c"] = True
        asker.resolver.wake()
        await until(lambda: len(asker.answers) == 3)
        assert service.asked.count("a") == 1  # the next refresh is far away


async def test_asks_for_a_bounded_number_at_once(service: NameService) -> None:
    service.open.clear()
    names = [f"n{number}" for number in range(3 * MAX_LOOKUPS)]
    async with asking(*names) as asker:
        await until(lambda: service.running == MAX_LOOKUPS)
        asker.resolver.wake()
        await asyncio.sleep(0.6)
        assert service.running == MAX_LOOKUPS
        assert len(set(service.asked)) == MAX_LOOKUPS  # nobody twice
        service.open.set()
        await until(lambda: {name for name, _ in asker.answers} == set(names))


async def test_names_of_the_dead_keep_nobody_waiting(service: NameService) -> None:
    service.open.clear()
    async with asking() as asker:
        asker.names.update({f"dead{number}": False for number in range(1_000)})
        asker.resolver.wake()
        await until(lambda: service.running == MAX_IDLE_LOOKUPS)
        # None of those comes back, and the others are asked for all the same.
        asker.names.update({f"alive{number}": True for number in range(20)})
        asker.resolver.wake()
        await until(lambda: service.running == MAX_LOOKUPS)
        assert [name[:5] for name in service.asked] == ["dead0", "dead1", "dead2"] + ["alive"] * (MAX_LOOKUPS - 3)
        service.open.set()
        await until(lambda: {name for name, _ in asker.answers} >= {f"alive{number}" for number in range(20)})
        # The others have their turn, one after the other.
        await until(lambda: len({name for name, _ in asker.answers}) > 40)


async def test_who_waits_for_longest_is_asked_for_first(service: NameService, monkeypatch: pytest.MonkeyPatch) -> None:
    # Everything is due again at once.
    monkeypatch.setattr("recursant.fleet.resolve.REFRESH_S", 0.0)
    names = [f"n{number}" for number in range(5 * MAX_LOOKUPS)]
    async with asking(*names) as asker:
        await until(lambda: {name for name, _ in asker.answers} == set(names))


async def test_forgets_when_it_asked_for_names_that_nobody_has(service: NameService) -> None:
    async with asking("a") as asker:
        await until(lambda: len(asker.answers) == 1)
        asker.names.clear()
        await asyncio.sleep(0.6)
        asker.names["a"] = True
        await until(lambda: len(asker.answers) == 2)


async def test_leaves_no_lookup_behind(service: NameService) -> None:
    service.open.clear()
    async with asking("a", "b"):
        await until(lambda: service.running == 2)
    await until(lambda: service.cancelled == 2)
