"""Listening addresses and socket files."""

import os
import socket
import stat
from pathlib import Path

import pytest

from extproc.transports.address import (
    AddressError,
    SocketFile,
    SocketUmask,
    TcpAddress,
    UnixAddress,
    claim_unix_path,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("unix:/run/recursant/extproc.sock", UnixAddress(Path("/run/recursant/extproc.sock"))),
        ("127.0.0.1:9002", TcpAddress("127.0.0.1", 9002)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("[::1]:9002", TcpAddress("::1", 9002)),
        ("0.0.0.0:65535", TcpAddress("0.0.0.0", 65_535)),
    ],
)
def test_addresses_are_parsed_and_written_back(text: str, address: UnixAddress | TcpAddress) -> None:
    assert parse_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("unix:relative.sock", "absolute path"),
        ("unix:", "absolute path"),
        ("unix:/" + "x" * 107, "at most 107 bytes"),
        ("9002", "expected"),
        (":9002", "expected"),
        ("host:", "expected"),
        ("host:port", "expected"),
        ("host:65536", "expected"),
        ("host:-1", "expected"),
        ("host:٣", "expected"),
        ("::1:9002", "brackets"),
        ("", "expected"),
    ],
)
def test_what_is_no_address_is_refused(text: str, reason: str) -> None:
    with pytest.raises(AddressError, match=reason):
        parse_address(text)


def test_the_longest_path_is_bindable(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path = path.with_name("x" * (107 - len(os.fsencode(tmp_path)) - 1))
    assert isinstance(parse_address(f"unix:{path}"), UnixAddress)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def test_a_plain_file_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(AddressError, match="not a socket"):
        claim_unix_path(path)
    assert path.read_text() == "data"


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AddressError, match="unix:"):
        claim_unix_path(tmp_path / "file" / "extproc.sock")


def test_a_busy_listener_is_in_use(tmp_path: Path) -> None:
    """Its backlog may be full: then connecting fails with EAGAIN, and it lives all the same."""
    path = tmp_path / "busy.sock"
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(path))
        busy.listen(0)
        waiting = []
        for _ in range(3):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            client.connect_ex(str(path))
            waiting.append(client)
        with pytest.raises(AddressError, match="in use"):
            claim_unix_path(path)
        for client in waiting:
            client.close()


def test_the_umask_comes_back(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            with SocketUmask():
                listener.bind(str(tmp_path / "s"))
            assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
            assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_only_our_own_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
        first.bind(str(path))
        ours = SocketFile.of(path)
        path.rename(tmp_path / "kept")
        second.bind(str(path))
        ours.remove()
        assert path.exists()
        (tmp_path / "kept").rename(path)
        ours.remove()
        assert not path.exists()
        ours.remove()
