"""`recursant workers` against a small control API."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from recursant.cli.app import run
from recursant.cli.worker_rows import worker_row
from recursant.supervise.endpoints import Endpoints
from recursant.supervise.ports import free_ports

READY = {
    "id": "sim-8101",
    "status": "ready",
    "endpoint": "127.0.0.1:8101",
    "static": False,
    "exclusive": False,
    "engine": "sim",
    "models": [
        {"name": "m1", "family": "qwen", "max_model_len": 1},
        {"name": "m2", "family": "", "max_model_len": None},
    ],
    "load": {
        "running_requests": 3,
        "waiting_requests": 0,
        "queue_wait_ms": 1.0,
        "token_rate": 98.6,
        "kv_cache_usage": 0.256,
        "free_vram_mb": 4096,
        "capacity_tokens": 1,
    },
    "last_beat_age_s": 0.14,
}
NEVER_SEEN = {
    "id": "gpu",
    "status": "unresolved",
    "endpoint": None,
    "static": True,
    "exclusive": True,
    "engine": "",
    "models": [],
    "load": None,
    "last_beat_age_s": None,
}
DOCUMENT = {"workers": [READY, NEVER_SEEN]}


class Api:
    """Answers GET /v1/workers with `status` and `body`."""

    def __init__(self) -> None:
        self.status, self.body = 200, json.dumps(DOCUMENT)
        self.orders: list[tuple[str, str, object]] = []
        # To an order.
        self.answer: object = None
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(api.status if self.path == "/v1/workers" else 404)
                self.end_headers()
                self.wfile.write(api.body.encode())

            def do_POST(self) -> None:
                self._note(self.rfile.read(int(self.headers["content-length"])).decode())

            def do_DELETE(self) -> None:
                self._note("")

            def _note(self, body: str) -> None:
                api.orders.append((self.command, self.path, json.loads(body or "null")))
                self.send_response(api.status)
                self.end_headers()
                self.wfile.write(json.dumps(api.answer).encode() if api.status == 200 else api.body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def api() -> Iterator[Api]:
    fake = Api()
    thread = threading.Thread(target=fake.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        fake.server.shutdown()
        fake.server.server_close()
        thread.join()


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RECURSANT_API", "RECURSANT_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)


def endpoints(api: str) -> str:
    return Endpoints("1", "/r", 1, "http://g", "http://a", api, "x:1", "redis://r", [], {}).to_json()


def test_table(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["workers", "list", "--api", api.url]) == 0
    head, ready, never_seen = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head[:3] == ["worker", "status", "endpoint"]
    assert ready == [
        "sim-8101",
        "ready",
        "127.0.0.1:8101",
        "m1,",
        "m2",
        *["3", "0", "99", "26%", "4096", "0.1", "s", "ago"],
    ]
    # What is not known is not shown as zero.
    assert never_seen == ["gpu", "unresolved,", "static,", "exclusive", *["-"] * 8]


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_for_programs(api: Api, form: str, read: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["workers", "list", "--api", f"{api.url}/", "-o", form]) == 0
    assert read(capsys.readouterr().out) == DOCUMENT  # type: ignore[operator]


def test_finds_the_api_by_run_directory(api: Api, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run", "other"):  # the default one, and one that is named
        (tmp_path / name).mkdir()
        (tmp_path / name / "endpoints.json").write_text(endpoints(api.url if name == "other" else "http://127.0.0.1:1"))
    assert run(["workers", "list", "--run-dir", "other"]) == 0
    (tmp_path / "run" / "endpoints.json").write_text(endpoints(api.url))
    assert run(["workers", "list"]) == 0
    capsys.readouterr()


def test_finds_the_api_by_environment(
    api: Api, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RECURSANT_API", api.url)
    assert run(["workers", "list"]) == 0
    capsys.readouterr()


def failure(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    return line


def test_a_run_directory_where_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    line = failure(["workers", "list", "--run-dir", "there"], capsys)
    assert line == "error: no there/endpoints.json: is `recursant up` running there?"


def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    line = failure(["workers", "list", "--api", url], capsys)
    assert line.startswith(f"error: no control API at {url} (")
    assert "is `recursant up` running?" in line


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (503, '{"error": {"message": "not now"}}', "answers 503: not now"),
        (404, "<html>", "answers 404: Not Found"),
        (200, "<html>", "does not answer with JSON: is this the control API?"),
    ],
)
def test_an_api_that_says_no(api: Api, status: int, body: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    api.status, api.body = status, body
    assert failure(["workers", "list", "--api", api.url], capsys) == f"error: {api.url}/v1/workers {said}"


@pytest.mark.parametrize("url", ["nonsense", "http://[", "ftp://x"])
def test_a_url_that_is_none(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert url in failure(["workers", "list", "--api", url], capsys)


def test_isolate_and_release(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["workers", "isolate", "rack/gpu 1", "--for", "90s", "--reason", "odd", "--api", api.url]) == 0
    assert run(["workers", "isolate", "w2", "--api", api.url]) == 0
    assert run(["workers", "release", "w2", "--api", api.url]) == 0
    assert api.orders == [
        ("POST", "/v1/workers/rack%2Fgpu%201/isolation", {"for_s": 90, "reason": "odd"}),
        ("POST", "/v1/workers/w2/isolation", {"for_s": 600, "reason": ""}),
        ("DELETE", "/v1/workers/w2/isolation", None),
    ]
    assert capsys.readouterr().out.splitlines() == [
        "rack/gpu 1 is isolated for 90s",
        "w2 is isolated for 10m",
        "w2 is released",
    ]


@pytest.mark.parametrize("time", ["", "10", "-1m", "0s", "25h", "m", "1d"])
def test_a_time_that_is_none(api: Api, time: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is no time: expected 90s, 10m or 2h" in failure(
        ["workers", "isolate", "w1", "--for", time, "--api", api.url], capsys, 2
    )
    assert api.orders == []


def test_an_order_that_is_refused(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    api.status, api.body = 404, '{"error": {"message": "no worker"}}'
    assert failure(["workers", "release", "w1", "--api", api.url], capsys).endswith("answers 404: no worker")


@pytest.mark.parametrize(
    ("phase", "status", "shown"),
    [
        ("isolated", "isolated", "isolated (cuda: 3 CUDA errors in a row, 599 s left)"),
        ("trial", "ready", "ready (on trial after cuda)"),
        ("draining", "draining", "draining (3 CUDA errors in a row)"),
        ("spared", "ready", "ready (ALARM, too many are isolated: cuda: 3 CUDA errors in a row)"),
    ],
)
def test_the_list_says_why_a_worker_is_out(phase: str, status: str, shown: str) -> None:
    isolation = {"phase": phase, "reason": "cuda", "text": "3 CUDA errors in a row", "left_s": 599.0, "by": "extproc"}
    assert worker_row(READY | {"status": status, "isolation": isolation})[1] == shown
