"""The supervisor with small real programs: order, readiness, restarts, ends."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from supervise_kit import exists, failing, journal, spec, times

from recursant.supervise.child import StartError
from recursant.supervise.probe import UnixProbe
from recursant.supervise.process import Died, Event, ProcessSpec, Ready, Started, Stopped, describe_exit
from recursant.supervise.restart import RestartPolicy
from recursant.supervise.supervisor import Supervisor

QUICK = RestartPolicy(first_delay_s=0.05, max_delay_s=0.2)


class Run:
    """A supervisor and what it told."""

    def __init__(self, folder: Path, *specs: ProcessSpec) -> None:
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.events: list[Event] = []
        self.supervisor = Supervisor(specs, self.logs, self.events.append)

    def told(self, kind: type[Event], name: str) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind) and event.name == name]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110 - other processes set no event
                await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(folder: Path, *specs: ProcessSpec) -> AsyncIterator[Run]:
    run = Run(folder, *specs)
    try:
        await run.supervisor.start(30)
        yield run
    finally:
        await run.supervisor.stop()


async def test_starts_each_after_those_it_waits_for(tmp_path: Path) -> None:
    specs = [
        spec("base", tmp_path, delay_s=0.2),
        spec("left", tmp_path, after=("base",)),
        spec("right", tmp_path, after=("base",)),
        spec("top", tmp_path, after=("left", "right")),
    ]
    async with running(tmp_path, *specs) as run:
        assert set(run.supervisor.pids) == {"base", "left", "right", "top"}
        began = {name: times(tmp_path / name) for name in run.supervisor.pids}
    assert began["base"]["listen"] < min(began["left"]["start"], began["right"]["start"])
    assert max(began["left"]["listen"], began["right"]["listen"]) < began["top"]["start"]


async def test_stops_each_before_those_it_waited_for(tmp_path: Path) -> None:
    top = spec("top", tmp_path, after=("base",), on_term="linger")
    async with running(tmp_path, spec("base", tmp_path), top) as run:
        pids = run.supervisor.pids
    ended = {name: times(tmp_path / name) for name in pids}
    assert ended["top"]["end"] < ended["base"]["term"]
    assert [event.name for event in run.events if isinstance(event, Stopped)] == ["top", "base"]
    assert not any(map(exists, pids.values()))


async def test_starts_again_what_died(tmp_path: Path) -> None:
    async with running(tmp_path, spec("a", tmp_path, restart=QUICK), spec("b", tmp_path)) as run:
        first, other = run.supervisor.pids["a"], run.supervisor.pids["b"]
        os.kill(first, signal.SIGKILL)
        await run.until(lambda: len(run.told(Ready, "a")) == 2)
        second = run.supervisor.pids["a"]
        assert second != first
        assert run.supervisor.pids["b"] == other
        assert run.told(Died, "a") == [Died("a", first, -signal.SIGKILL, 0.05)]
        assert [event.again for event in run.told(Ready, "a") if isinstance(event, Ready)] == [False, True]


async def test_is_away_for_its_delay(tmp_path: Path) -> None:
    delay = 0.5
    async with running(tmp_path, spec("a", tmp_path, restart=RestartPolicy(first_delay_s=delay))) as run:
        os.kill(run.supervisor.pids["a"], signal.SIGKILL)
        await run.until(lambda: run.told(Died, "a"))
        died_at = time.monotonic()
        assert run.supervisor.pids == {}
        await run.until(lambda: len(run.told(Started, "a")) == 2)
        assert time.monotonic() - died_at >= delay * 0.9


async def test_a_death_while_starting_ends_the_start_and_says_why(tmp_path: Path) -> None:
    run = Run(tmp_path, spec("a", tmp_path), failing("b", "print('no licence'); raise SystemExit(3)"))
    with pytest.raises(StartError, match=r"^b ended by itself \(exit code 3\): no licence \[.*b\.log\]$"):
        await run.supervisor.start(30)
    await run.supervisor.stop()
    assert run.supervisor.pids == {}
    assert run.told(Died, "b")[0] == Died("b", run.told(Started, "b")[0].pid, 3, None)  # type: ignore[union-attr]


async def test_a_missing_program_is_named(tmp_path: Path) -> None:
    missing = ProcessSpec(name="a", command=("/nowhere/program",), ready=UnixProbe(str(tmp_path / "never")))
    run = Run(tmp_path, missing)
    with pytest.raises(StartError, match="cannot run /nowhere/program: No such file or directory"):
        await run.supervisor.start(30)
    await run.supervisor.stop()


async def test_a_start_that_takes_too_long_names_who_is_late(tmp_path: Path) -> None:
    late = failing("late", "print('loading', flush=True); import time; time.sleep(60)")
    run = Run(tmp_path, spec("a", tmp_path), late)
    with pytest.raises(StartError, match=r"^not ready after 1 s: late: loading$"):
        await run.supervisor.start(1)
    await run.supervisor.stop()
    assert run.supervisor.pids == {}


async def test_stop_while_starting_leaves_nothing(tmp_path: Path) -> None:
    slow = spec("slow", tmp_path, delay_s=30)
    run = Run(tmp_path, slow, spec("waits", tmp_path, after=("slow",)))
    starting = asyncio.create_task(run.supervisor.start(60))
    await run.until(lambda: journal(tmp_path / "slow"))
    pid = run.supervisor.pids["slow"]
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await run.supervisor.stop()
    assert not exists(pid)
    assert not run.told(Started, "waits")


async def test_stop_while_waiting_for_a_restart_does_not_wait(tmp_path: Path) -> None:
    async with running(tmp_path, spec("a", tmp_path, restart=RestartPolicy(first_delay_s=3600))) as run:
        os.kill(run.supervisor.pids["a"], signal.SIGKILL)
        await run.until(lambda: run.told(Died, "a"))
    assert len(run.told(Started, "a")) == 1


async def test_one_that_ignores_sigterm_is_killed_after_its_grace(tmp_path: Path) -> None:
    async with running(tmp_path, spec("a", tmp_path, on_term="ignore", grace_s=0.3)) as run:
        pid = run.supervisor.pids["a"]
        await run.until(lambda: journal(tmp_path / "a"))
    assert [what for _, what in journal(tmp_path / "a")] == ["start", "listen", "term"]
    assert not exists(pid)


async def test_kill_cuts_a_stop_short(tmp_path: Path) -> None:
    run = Run(tmp_path, spec("a", tmp_path, on_term="ignore", grace_s=3600))
    await run.supervisor.start(30)
    pid = run.supervisor.pids["a"]
    stopping = asyncio.create_task(run.supervisor.stop())
    await run.until(lambda: "term" in [what for _, what in journal(tmp_path / "a")])
    run.supervisor.kill()
    async with asyncio.timeout(30):
        await stopping
    assert not exists(pid)


async def test_running_work_may_end_before_sigterm(tmp_path: Path) -> None:
    seen: list[str] = []

    async def quiesce() -> None:
        await asyncio.sleep(0.2)
        seen.extend(what for _, what in journal(tmp_path / "a"))

    async with running(tmp_path, spec("a", tmp_path, quiesce=quiesce)):
        pass
    assert seen == ["start", "listen"]
    assert [what for _, what in journal(tmp_path / "a")] == ["start", "listen", "term", "end"]


async def test_kill_does_not_wait_for_running_work(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def quiesce() -> None:
        await never.wait()

    run = Run(tmp_path, spec("a", tmp_path, quiesce=quiesce))
    await run.supervisor.start(30)
    stopping = asyncio.create_task(run.supervisor.stop())
    await asyncio.sleep(0.1)
    assert not stopping.done()
    run.supervisor.kill()
    async with asyncio.timeout(30):
        await stopping


async def test_children_do_not_hear_the_terminal(tmp_path: Path) -> None:
    async with running(tmp_path, spec("a", tmp_path)) as run:
        pid = run.supervisor.pids["a"]
        assert os.getsid(pid) == pid != os.getsid(0)


async def test_output_goes_to_the_log_of_that_name(tmp_path: Path) -> None:
    async with running(tmp_path, spec("a", tmp_path, env={"X": "1"})) as run:
        assert (run.logs / "a.log").read_text().splitlines()[-1] == "listening"


async def test_environment_is_added_to_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "kept")
    code = "import os; print(os.environ['OURS'], os.environ['THEIRS'])"
    process = ProcessSpec(
        name="a",
        command=(sys.executable, "-c", code),
        ready=UnixProbe(str(tmp_path / "never")),
        env={"THEIRS": "added"},
    )
    run = Run(tmp_path, process)
    with pytest.raises(StartError, match=r"exit code 0\): kept added"):
        await run.supervisor.start(30)
    await run.supervisor.stop()


def test_refuses_an_order_that_cannot_be() -> None:
    base, top = failing("base", ""), ProcessSpec("top", ("x",), UnixProbe("x"), after=("base",))
    for specs in ([top, base], [base, base]):
        with pytest.raises(ValueError, match="process"):
            Supervisor(specs, Path(), lambda _: None)


async def test_refuses_to_start_from_another_thread(tmp_path: Path) -> None:
    run = Run(tmp_path, spec("a", tmp_path))

    async def start() -> None:
        try:
            await run.supervisor.start(5)
        finally:
            await run.supervisor.stop()

    with pytest.raises(RuntimeError, match="main thread"):
        await asyncio.to_thread(asyncio.run, start())


@pytest.mark.parametrize(
    ("status", "text"), [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal 9 (SIGKILL)"), (-50, "signal 50")]
)
def test_describes_exits(status: int, text: str) -> None:
    assert describe_exit(status) == text
