"""What `recursant up` shows, on a terminal and on a pipe."""

import io
from pathlib import Path

import pytest

from recursant.cli.up_view import UpView, summary
from recursant.config.load import parse_config
from recursant.supervise.layout import Layout, UpOptions, lay_out
from recursant.supervise.plan import RunChoices, plan
from recursant.supervise.process import Died, Ready, Started, Stopped
from recursant.supervise.rundir import RunDirectory

RUN = RunDirectory(Path("/r"))
SECRET = "redis://:hunter2@r:1/0"


class Terminal(io.StringIO):
    """Looks like a terminal to rich."""

    def isatty(self) -> bool:
        return True


class Gone(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


def layout(text: str = "agents: [{agent_id: a-1, model_family: qwen}]", **options: object) -> Layout:
    return lay_out(parse_config(text, "test.yaml").config, UpOptions(**options), RUN)  # type: ignore[arg-type]


def view(out: io.StringIO, err: io.StringIO, **options: object) -> UpView:
    chosen = layout(**options)
    return UpView(chosen, RUN, plan(chosen, RUN, RunChoices(envoy_binary=Path("/e"))), out=out, err=err)


def test_on_a_pipe_each_step_is_a_line_and_the_summary_is_apart() -> None:
    out, err = io.StringIO(), io.StringIO()
    with view(out, err, workers=1) as shown:
        shown.event(Started("redis", 1))
        shown.event(Ready("redis", 1, 0.12, again=False))
        shown.waiting("no worker")
        shown.ready()
    assert err.getvalue() == "redis is up after 0.1 s\nthe gateway is not ready yet: no worker\n"
    assert out.getvalue().splitlines() == [
        *summary(layout(workers=1, redis_url="redis://x"), RUN)[:5],
        *out.getvalue().splitlines()[5:],
    ]
    assert out.getvalue().endswith("\nready\n")


def test_without_workers_it_says_how_one_comes_in() -> None:
    err = io.StringIO()
    with view(io.StringIO(), err, workers=0) as shown:
        shown.waiting("no worker")
    assert err.getvalue() == (
        "the gateway is not ready yet: no worker\n"
        "a vLLM that runs on this machine comes in with "
        "`recursant worker sidecar --url http://127.0.0.1:8000 --run-dir /r`\n"
    )


def test_on_a_terminal_progress_leaves_nothing_but_news() -> None:
    out, err = io.StringIO(), Terminal()
    with view(out, err, workers=1) as shown:
        shown.event(Ready("redis", 1, 0.12, again=False))
        shown.waiting("no worker [yet]")
        shown.ready()
        shown.event(Died("xds", 7, -9, 0.2))
    assert "starting: waiting for xds, api, extproc, sim-8101, envoy" in err.getvalue()
    assert "redis is up" not in err.getvalue()
    assert "the gateway is not ready yet: no worker [yet]" in err.getvalue()
    assert out.getvalue().endswith("ready\n")


def test_progress_stays_on_a_line_however_many_there_are() -> None:
    err = Terminal()
    with view(io.StringIO(), err, workers=100):
        pass
    assert "waiting for redis, xds, api, extproc, sim-8101, sim-8102 and 99 more" in err.getvalue().replace("\n", " ")


def test_deaths_and_returns_are_told() -> None:
    out, err = io.StringIO(), io.StringIO()
    with view(out, err) as shown:
        shown.event(Died("xds", 7, -9, 0.2))
        shown.event(Started("xds", 8))
        shown.event(Ready("xds", 8, 1.0, again=True))
        shown.event(Died("envoy", 9, 1, None))
        shown.event(Stopped("redis"))
    assert err.getvalue().splitlines() == [
        "xds (pid 7) died: signal 9 (SIGKILL), starting it again in 0.2 s",
        "xds is back",
        "envoy (pid 9) died: exit code 1",
    ]


def test_signals_are_answered() -> None:
    err = io.StringIO()
    with view(io.StringIO(), err) as shown:
        shown.stopping(at_once=False)
        shown.stopping(at_once=True)
    assert err.getvalue().splitlines() == [
        "stopping; running requests may end (Ctrl-C again: at once)",
        "stopping at once",
    ]


def test_edits_of_the_configuration_are_told() -> None:
    err = io.StringIO()
    with view(io.StringIO(), err) as shown:
        shown.edited(["r.yaml: in force now: paths", "r.yaml: needs a restart: api.port"])
    assert err.getvalue() == "r.yaml: in force now: paths\nr.yaml: needs a restart: api.port\n"


def test_goes_on_when_nobody_reads() -> None:
    with view(Gone(), Gone()) as shown:
        shown.event(Died("xds", 7, -9, 0.2))
        shown.ready()
        shown.stopping(at_once=False)


def test_the_summary_names_no_password() -> None:
    text = "\n".join(summary(layout(redis_url=SECRET), RUN))
    assert "hunter2" not in text
    assert "external" in text


def test_the_summary_warns_of_a_gateway_that_others_reach() -> None:
    assert not [line for line in summary(layout(), RUN) if "warning" in line]
    [warning] = [line for line in summary(layout(host="0.0.0.0"), RUN) if "warning" in line]
    assert "without TLS and without keys" in warning


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({"workers": 1, "worker_models": ("m",)}, "1 simulated at 127.0.0.1:8101, serving m"),
        ({"workers": 2, "worker_models": ("m",)}, "2 simulated at 127.0.0.1:8101…8102, serving m"),
        ({"worker_urls": ("http://gpu:80",)}, "1 configured: gpu:80"),
        ({"workers": 0}, "none: start some with `recursant sim`, or bring a vLLM in with `recursant worker sidecar`"),
        (
            {"worker_urls": tuple(f"http://g{n}:80" for n in range(5)), "workers": 1, "worker_models": ("m",)},
            "1 simulated at 127.0.0.1:8101, serving m; 5 configured: g0:80, g1:80, g2:80, g3:80, …",
        ),
    ],
)
def test_the_summary_names_the_workers(options: dict[str, object], workers: str) -> None:
    assert f"  workers  {workers}" in summary(layout(**options), RUN)


def test_the_example_is_for_an_agent_that_exists() -> None:
    [example] = [line for line in summary(layout(), RUN) if "curl" in line]
    assert "-H 'X-Agent-ID: a-1'" in example
    [example] = [line for line in summary(layout("{}"), RUN) if "curl" in line]
    assert "X-Agent-ID" not in example
