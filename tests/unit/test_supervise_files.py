"""Log files and endpoints.json."""

from pathlib import Path

import pytest

from recursant.supervise.endpoints import Endpoints, EndpointsError, ProcessEndpoint, WorkerEndpoint, read_endpoints
from recursant.supervise.logs import LogFile

ENDPOINTS = Endpoints(
    version="1.2.3",
    run_dir="/run/dir",
    pid=7,
    gateway="http://127.0.0.1:8000",
    admin="http://127.0.0.1:9901",
    api="http://127.0.0.1:8001",
    xds="127.0.0.1:18000",
    redis="redis://127.0.0.1:6379/0",
    extproc=["unix:/run/dir/extproc.sock"],
    metrics={"extproc": "http://127.0.0.1:9003/metrics"},
    workers=[WorkerEndpoint("sim-8101", "http://127.0.0.1:8101", 12), WorkerEndpoint("gpu", "http://gpu:8000", None)],
    processes=[ProcessEndpoint("sim-8101", 12, "127.0.0.1:8101")],
    pids={"sim-8101": 12},
)


def test_endpoints_survive_the_file(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text(ENDPOINTS.to_json())
    assert read_endpoints(tmp_path) == ENDPOINTS


def test_no_endpoints_means_nothing_runs(tmp_path: Path) -> None:
    with pytest.raises(EndpointsError, match=r"no .*endpoints\.json: is `recursant up` running there\?"):
        read_endpoints(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"workers": [1], "processes": []}', "\xff"])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "endpoints.json").write_text(text, encoding="latin-1")
    with pytest.raises(EndpointsError, match="cannot read"):
        read_endpoints(tmp_path)


def write(log: LogFile, text: str) -> None:
    with log.open_for_child() as file:
        file.write(text.encode())


def test_the_last_run_is_kept_once(tmp_path: Path) -> None:
    for run in ("one", "two", "three"):
        log = LogFile(tmp_path, "api")
        log.begin()
        write(log, run)
    assert (tmp_path / "api.log").read_text().endswith("three")
    assert (tmp_path / "api.log.1").read_text().endswith("two")
    assert len(list(tmp_path.iterdir())) == 2


def test_restarts_of_one_run_share_a_file(tmp_path: Path) -> None:
    log = LogFile(tmp_path, "api")
    log.begin()
    write(log, "one\n")
    write(log, "two\n")
    started, one, started_again, two = (tmp_path / "api.log").read_text().splitlines()
    assert (one, two) == ("one", "two")
    assert started.startswith("--- started 20")
    assert started_again.startswith("--- started 20")


def test_the_last_line_is_of_the_last_start(tmp_path: Path) -> None:
    log = LogFile(tmp_path, "api")
    assert log.last_line() == ""
    log.begin()
    write(log, "one\n  why \n\n")
    assert log.last_line() == "why"
    write(log, "")
    assert log.last_line() == ""


def test_a_file_that_grew_too_large_begins_anew_under_its_writer(tmp_path: Path) -> None:
    log = LogFile(tmp_path, "api", max_bytes=1_000)
    log.begin()
    with log.open_for_child() as file:
        file.write(b"a" * 500)
        file.flush()
        log.bound()
        assert log.path.stat().st_size > 500  # not yet
        file.write(b"b" * 600)
        file.flush()
        log.bound()
        file.write(b"c\n")
        file.flush()
    assert log.path.read_text() == "c\n"
    assert (tmp_path / "api.log.1").read_text().endswith("b" * 600)
    assert log.last_line() == "c"
