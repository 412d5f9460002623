"""The run directory: one owner, private files, sockets that fit."""

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from recursant.supervise.rundir import RunDirectory, RunDirectoryError

CLAIM = """
import sys, time
from pathlib import Path
from recursant.supervise.rundir import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
run.claim()
print("claimed", flush=True)
time.sleep(60)
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_makes_what_it_needs_for_its_owner_alone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "deep" / "run")
    run.claim()
    try:
        assert [mode(path) for path in (run.path, run.logs, run.redis)] == [0o700] * 3
    finally:
        run.release()


def test_a_second_claim_names_the_first(tmp_path: Path) -> None:
    first, second = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    first.claim()
    with pytest.raises(RunDirectoryError, match=rf"\(pid {os.getpid()}\) already runs in {first.path}: .*--run-dir"):
        second.claim()
    first.release()
    second.claim()
    second.release()


def test_a_claim_ends_with_its_process_however_that_dies(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIM, str(tmp_path / "run")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "claimed\n"
        run = RunDirectory(tmp_path / "run")
        with pytest.raises(RunDirectoryError, match=rf"pid {other.pid}\)"):
            run.claim()
        other.kill()
        other.wait()
        run.claim()
        run.release()


def test_endpoints_of_a_dead_run_do_not_survive_a_claim(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.endpoints.write_text("old")
    run.claim()
    assert not run.endpoints.exists()
    run.write(run.endpoints, "new")
    run.release()
    assert not run.endpoints.exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunDirectoryError, match=r"cannot use the run directory .*: (Not a directory|File exists)"):
        RunDirectory(tmp_path / "file").claim()


def test_files_are_replaced_whole_and_private(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write(run.config, "one")
    with run.config.open() as reader:
        run.write(run.config, "two")
        assert reader.read() == "one"
    assert run.config.read_text() == "two"
    assert mode(run.config) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["recursant.yaml"]


def test_sockets_live_here_if_their_path_fits(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    assert len(str(run.path)) < 90
    assert run.socket_directory() == run.path


def test_sockets_live_in_a_short_private_folder_if_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp")
    run = RunDirectory(tmp_path / ("x" * 100))
    folder = run.socket_directory()
    try:
        assert len(str(folder / "extproc-99.sock")) <= 107
        assert mode(folder) == 0o700
        assert RunDirectory(run.path).socket_directory() == folder  # the same after a restart
        assert RunDirectory(tmp_path / ("y" * 100)).socket_directory() != folder
    finally:
        folder.rmdir()
        RunDirectory(tmp_path / ("y" * 100)).socket_directory().rmdir()


def test_a_short_folder_that_others_can_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    run = RunDirectory(Path("/" + "x" * 100))
    run.socket_directory().chmod(0o777)
    with pytest.raises(RunDirectoryError, match="is not ours alone"):
        run.socket_directory()
    folder = next(tmp_path.iterdir())
    folder.rmdir()
    folder.symlink_to("/tmp")
    with pytest.raises(RunDirectoryError, match="is not ours alone"):
        run.socket_directory()
