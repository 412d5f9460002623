"""Any order of events: several desks with one queue do as one desk would, and lose nothing."""

import random
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from queue_kit import CONFIG, NAMES, PROCESSES, Client, Host, Single, one_worker_each

Steps = list[tuple[str, int, int]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["come", "come", "come", "done", "done", "leave", "later"]),
        st.integers(0, 1_000),
        st.integers(0, 1_000),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS)
def test_as_one_desk_would_have_done_it(steps: Steps) -> None:
    """The same requests, ends and times: the same are placed, held and refused after every step."""
    with tempfile.TemporaryDirectory() as folder:
        host = Host(Path(folder), PROCESSES, CONFIG, one_worker_each(qwen=4, phi=2))
        single = Single(CONFIG, one_worker_each(qwen=4, phi=2))
        pairs: list[tuple[Client, Client, int]] = []
        now = 0.0
        for what, some, other in steps:
            if what == "come":
                agent, number = NAMES[some % len(NAMES)], 1 + other % PROCESSES
                pairs.append((single.come(agent), host.processes[number].come(agent), number))
            elif what == "later":
                now += some / 100
                host.at(now)
                single.now = now
            else:
                wanted = "placed" if what == "done" else "waits"
                found = [index for index, pair in enumerate(pairs) if pair[0].said == wanted]
                if found:
                    alone, together, number = pairs.pop(found[some % len(found)])
                    getattr(single, what)(alone)
                    getattr(host.processes[number], what)(together)
            host.settle()
            for process in host.processes.values():
                process.run()
            host.settle()
            single.run()
            if what == "later":
                host.processes[1].reported()
                host.settle()
                single.desk.capacity_changed()
                single.run()
            assert [pair[1].said for pair in pairs] == [pair[0].said for pair in pairs]
        host.close()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32))
def test_nothing_is_lost_stuck_or_counted_for_ever_whatever_the_order_of_messages(seed: int) -> None:
    """Messages late in any order, processes killed at any moment, the owner too."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        # Nobody ages, so that time alone makes no room.
        host = Host(Path(folder), PROCESSES, CONFIG, one_worker_each(qwen=4, phi=2), ageing_s=1e9)
        clients: dict[int, list[Client]] = {number: [] for number in host.processes}
        for _ in range(150):
            number = rng.choice(list(host.processes))
            process, own = host.processes[number], clients[number]
            match rng.choice(["come"] * 4 + ["deliver"] * 12 + ["done"] * 3 + ["leave", "later", "kill"]):
                case "come":
                    own.append(process.come(rng.choice(NAMES)))
                case "deliver":
                    if links := host.links():
                        host.deliver(rng.choice(links))
                case "done":
                    if placed := [each for each in own if each.placed]:
                        client = rng.choice(placed)
                        own.remove(client)
                        process.done(client)
                case "leave":
                    if waits := [each for each in own if each.said == "waits"]:
                        client = rng.choice(waits)
                        own.remove(client)
                        process.leave(client)
                case "later":
                    host.at(process.now + rng.random())
                    for each in host.processes.values():
                        each.run()
                case "kill":
                    if len(host.processes) > 1 and rng.random() < 0.2:
                        host.kill(number)
                        del clients[number]
            # `turns` takes a place where there is none; all others have one each.
            placed_now = [each for own in clients.values() for each in own if each.placed and each.agent != "turns"]
            assert len(placed_now) <= 6
        host.settle()
        survivors = [each for own in clients.values() for each in own]
        # Whoever still waits does so for want of a place.
        host.queue.serve(host.processes[min(host.processes)].now)
        assert not host.links()
        for number, own in clients.items():
            for client in [each for each in own if each.placed]:
                host.processes[number].done(client)
                own.remove(client)
            host.settle()
        for _ in range(len(survivors)):
            for number, own in clients.items():
                for client in [each for each in own if each.placed]:
                    host.processes[number].done(client)
                    own.remove(client)
                host.settle()
        assert not [each for own in clients.values() for each in own if each.said == "waits"]
        assert not host.queue.busy()
        for process in host.processes.values():
            assert process.table.in_flight_total() == 0
            assert process.board.quiet()
            assert not process.shared.waiting()
        host.close()
