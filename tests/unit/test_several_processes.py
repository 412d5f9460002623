"""Several extproc processes: how they are planned, found and asked."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from cli_kit import parse

from extproc.sharing import Neighbours, Share
from recursant.api.errors import ProblemError
from recursant.api.exposition import Part, merge
from recursant.api.inspection import ExtProcInspection, questions, together
from recursant.api.peers import Peers
from recursant.config.load import ConfigError, parse_config
from recursant.config.model import Config
from recursant.fleet import record_locks
from recursant.supervise.layout import Layout, LayoutError, UpOptions, lay_out
from recursant.supervise.plan import RunChoices, endpoints, plan
from recursant.supervise.ports import PortError, free_range
from recursant.supervise.rundir import RunDirectory

RUN = RunDirectory(Path("/r"))
PATIENCE_S = 20.0


def layout(text: str = "", **options: Any) -> Layout:
    return lay_out(parse_config(text, "test.yaml").config, UpOptions(**options), RUN)


# --- what runs ---


def test_each_process_has_a_socket_a_port_and_a_number() -> None:
    chosen = layout(extproc_processes=3, workers=0)
    assert chosen.config.extproc.listen == tuple(f"unix:/r/extproc-{n}.sock" for n in (1, 2, 3))
    assert chosen.config.extproc.metrics_ports == (9003, 9004, 9005)
    assert {binding.port for binding in chosen.bindings} >= {9003, 9004, 9005}
    specs = {spec.name: spec for spec in plan(chosen, RUN, RunChoices(envoy_binary=Path("/bin/envoy")))}
    names = [name for name in specs if name.startswith("extproc")]
    assert names == ["extproc-1", "extproc-2", "extproc-3"]
    for number, name in enumerate(names, 1):
        assert specs[name].address == f"unix:/r/extproc-{number}.sock"
        path, given = parse(specs[name].command[4:])
        assert path == "recursant serve extproc"
        assert (given["process"], given["counts_file"]) == (number, Path("/r/inflight"))
    told = endpoints(chosen, RUN, list(specs.values()), {})
    assert {name: told.metrics[name] for name in names} == {
        f"extproc-{n}": f"http://127.0.0.1:{9002 + n}/metrics" for n in (1, 2, 3)
    }


def test_the_file_may_say_how_many_and_the_option_wins() -> None:
    assert len(layout("extproc: {processes: 2}").config.extproc.listen) == 2
    assert layout("extproc: {processes: 2}", extproc_processes=1).config.extproc.listen == ("unix:/r/extproc.sock",)


def test_any_free_port_means_as_many_in_a_row() -> None:
    ports = layout(extproc_processes=4, extproc_metrics_port=0, workers=3, worker_port=0).config.extproc.metrics_ports
    assert ports == tuple(range(ports[0], ports[0] + 4))
    with pytest.raises(LayoutError, match="go past 65535: lower --extproc-metrics-port"):
        layout(extproc_processes=2, extproc_metrics_port=65_535)


def test_a_range_of_ports_leaves_out_what_is_taken() -> None:
    def ports(count: int, taken: set[int]) -> set[int]:
        first = free_range("127.0.0.1", count, taken=taken)
        return set(range(first, first + count))

    some = ports(3, set())
    middle = sorted(some)[1]
    with socket.create_server(("127.0.0.1", middle)):
        assert middle not in ports(3, set())
    assert not some & ports(2, some)
    with pytest.raises(PortError, match="no free port"):
        free_range("203.0.113.1", 2)


def test_processes_share_out_the_addresses() -> None:
    listen = ["h:1", "h:2", "h:3"]
    extproc = Config.model_validate({"extproc": {"listen": listen, "processes": 2}}).extproc
    assert [extproc.listen_of(process) for process in (1, 2)] == [("h:1", "h:3"), ("h:2",)]


@pytest.mark.parametrize(
    ("text", "said", "allowed"),
    [
        (
            "extproc:\n  listen: ['h:1']\n  processes: 2\n",
            "extproc.processes: each process needs an address of its own in extproc.listen",
            "got 2; allowed: at most 1, as many as extproc.listen has",
        ),
        (
            "extproc: {processes: 3, metrics_port: 65534}",
            "extproc.metrics_port: the 3 processes take ports from here on, and the last of them does not exist",
            "got 65534; allowed: at most 65533",
        ),
        (
            "extproc: {processes: 65}",
            "extproc.processes: out of range",
            "got 65; allowed: a whole number from 1 to 64",
        ),
    ],
)
def test_numbers_that_do_not_fit_are_refused(text: str, said: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_config(text, "f.yaml")
    [problem] = refused.value.problems
    assert str(problem).endswith(f": {said}, {allowed}")


def test_a_port_of_a_later_process_may_collide_too() -> None:
    found = parse_config("extproc: {metrics_port: 17999, processes: 2}", "f.yaml").warnings
    assert [str(each) for each in found] == [
        "f.yaml:1: xds.port: the same address as extproc.metrics_port; both on one machine cannot listen, got 18000"
    ]


# --- metrics ---


def test_samples_say_of_which_process_they_are() -> None:
    merged = merge([Part("extproc", "x 1\n", "1"), Part("extproc", 'x{a="b"} 2\n', "2"), Part("xds", "x 3\n")])
    assert merged.splitlines() == [
        'x{service="extproc",process="1"} 1',
        'x{service="extproc",process="2",a="b"} 2',
        'x{service="xds"} 3',
    ]


async def test_each_process_is_scraped() -> None:
    config = Config.model_validate({"extproc": {"metrics_port": 9500, "listen": ["h:1", "h:2"], "processes": 2}})

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200 if request.url.port != 9501 else 500, text=f"port {request.url.port}\n")

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        parts = await Peers(config, client).read()
    assert parts == [
        Part("extproc", "port 9500\n", "1"),
        Part("extproc", None, "2"),
        Part("xds", "port 18001\n"),
    ]


# --- decisions and explain ---


def note(name: str, time: float) -> dict[str, Any]:
    return {"id": name, "time": time}


def test_a_cursor_is_a_place_in_each_log() -> None:
    given = [("limit", "10"), ("after", "a:3,b:4")]
    assert questions("/decisions", given, 2) == [[("limit", "5"), ("after", "a:3")], [("limit", "5"), ("after", "b:4")]]
    assert questions("/decisions", given, 1) == [given]
    # Of a run with another number of processes: everything is news.
    assert [dict(each)["after"] for each in questions("/decisions", given, 3)] == [":0", ":0", ":0"]
    assert questions("/explain", [("agent", "a")], 2) == [[("agent", "a")]] * 2


def test_the_logs_are_one_in_order_of_time() -> None:
    documents = [
        {"decisions": [note("a1", 1.0), note("a2", 3.0)], "cursor": "a:2"},
        {"decisions": [note("b1", 2.0)], "cursor": "b:1"},
    ]
    found = together(documents, {"limit": "2"})
    assert [each["id"] for each in found["decisions"]] == ["b1", "a2"]
    assert found["cursor"] == "a:2,b:1"
    # Whoever follows gets all there is: what was left out would never be shown.
    assert len(together(documents, {"limit": "2", "after": "a:0,b:0"})["decisions"]) == 3


def test_the_place_of_a_process_that_is_away_is_kept() -> None:
    document = {"decisions": [], "cursor": "b:9"}
    assert together([None, document], {"after": "a:3,b:4"})["cursor"] == "a:3,b:9"
    assert together([None, document], {})["cursor"] == ":0,b:9"


def test_explain_is_one_answer_with_everybody_who_waits() -> None:
    documents = [
        {"workers": ["w"], "waiting": {"high": 1, "low": 0}},
        {"workers": ["w"], "waiting": {"high": 2, "low": 4}},
    ]
    assert together(documents, {}) == {"workers": ["w"], "waiting": {"high": 3, "low": 4}}


async def test_one_process_is_enough_for_an_answer_and_none_is_said() -> None:
    config = Config.model_validate({"extproc": {"metrics_port": 9500, "listen": ["h:1", "h:2"], "processes": 2}})
    up: set[int | None] = {9501}

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.port not in up:
            raise httpx.ConnectError("refused")
        if request.url.params.get("agent") == "bad":
            problem = {"error": {"message": "no such agent", "param": "agent"}}
            return httpx.Response(400, content=json.dumps(problem))
        return httpx.Response(200, content=json.dumps({"workers": [], "waiting": {"low": 1}}))

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        inspection = ExtProcInspection(config, client)
        assert (await inspection.ask("/explain", []))["waiting"] == {"low": 1}
        with pytest.raises(ProblemError) as bad:
            await inspection.ask("/explain", [("agent", "bad")])
        assert (bad.value.problem.status, bad.value.problem.message) == (400, "no such agent")
        up.clear()
        with pytest.raises(
            ProblemError, match=r"does not answer at http://127\.0\.0\.1:9500, http://127\.0\.0\.1:9501"
        ):
            await inspection.ask("/explain", [])


# --- inside extproc ---


async def test_what_a_process_leaves_behind_is_cleared_and_told(tmp_path: Path) -> None:
    config = Config.model_validate({"extproc": {"listen": ["h:1", "h:2"], "processes": 2}, "limits": {"workers": 4}})
    one, two = (Neighbours(config, Share(process, tmp_path / "counts")) for process in (1, 2))
    row = one.slots.claim("w")
    two.slots.add(two.slots.claim("w"), 3)
    freed = asyncio.Event()
    async with one.reaping(freed.set):
        # As the kernel does for a process that is killed.
        record_locks.give_back(two._file._file.fd, 2)
        async with asyncio.timeout(PATIENCE_S):
            await freed.wait()
        assert one.slots.at(row)[0] == 0
    async with two.reaping(freed.set):
        pass
