"""Ports: in use, wanted twice, free."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from recursant.supervise import ports
from recursant.supervise.ports import Binding, PortError, check_bindings, free_ports, holder_of

HOST = "127.0.0.1"


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        yield server.getsockname()[1]


def gateway(port: int, host: str = HOST) -> Binding:
    return Binding("the gateway", host, port, "--gateway-port")


def api(port: int, host: str = HOST) -> Binding:
    return Binding("the control API", host, port, "--api-port")


def test_free_ports_pass() -> None:
    one, two = free_ports(HOST, 2)
    check_bindings([gateway(one), api(two)])
    check_bindings([gateway(one), api(two)])  # and stay free


def test_names_the_port_its_holder_and_the_option(busy_port: int) -> None:
    me = f"{Path('/proc/self/comm').read_text().strip()} (pid {os.getpid()})"
    with pytest.raises(PortError) as caught:
        check_bindings([api(free_ports(HOST, 1)[0]), gateway(busy_port)])
    assert str(caught.value) == (
        f"port {busy_port} for the gateway is in use by {me}: stop that, or choose another with --gateway-port"
    )


def test_a_port_of_one_address_blocks_all_of_them(busy_port: int) -> None:
    with pytest.raises(PortError, match=f"port {busy_port} for the gateway is in use"):
        check_bindings([gateway(busy_port, "0.0.0.0")])


def test_connections_that_linger_do_not_hold_a_port() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as every server does
        server.bind((HOST, 0))
        server.listen()
        port = server.getsockname()[1]
        with socket.create_connection((HOST, port)), server.accept()[0] as accepted:
            accepted.shutdown(socket.SHUT_WR)
            accepted.close()  # The server ends it first: TIME_WAIT is on its side.
    check_bindings([gateway(port)])


@pytest.mark.parametrize(("one", "other"), [(HOST, HOST), (HOST, "0.0.0.0"), ("0.0.0.0", HOST), ("::", HOST)])
def test_a_port_wanted_twice(one: str, other: str) -> None:
    with pytest.raises(PortError) as caught:
        check_bindings([gateway(8000, one), api(8000, other)])
    assert str(caught.value) == "port 8000 is given to the gateway and to the control API: change --api-port"


def test_the_same_port_of_different_addresses_is_fine() -> None:
    [port] = free_ports("0.0.0.0", 1)
    check_bindings([gateway(port, HOST), api(port, "127.0.0.2")])


def test_an_address_that_is_not_ours() -> None:
    with pytest.raises(PortError, match=r"cannot listen on 192\.0\.2\.1:8000 for the gateway: Cannot assign"):
        check_bindings([gateway(8000, "192.0.2.1")])  # RFC 5737: nobody's


def test_free_ports_are_distinct_and_not_those_of_outgoing_connections() -> None:
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found = free_ports(HOST, 50)
    assert len(set(found)) == 50
    if first_ephemeral > 11_000:
        assert max(found) < first_ephemeral


def test_free_ports_leave_out_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ephemeral_start", lambda: 11_001)
    taken = set(range(10_000, 11_000))
    assert free_ports(HOST, 1, taken=taken) == [11_000]


def test_no_free_port_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_ephemeral_start", lambda: 11_001)
    with pytest.raises(PortError, match="no free port"):
        free_ports(HOST, 1, taken=range(10_000, 11_001))


def test_holder_of_a_free_port_is_unknown() -> None:
    assert holder_of(free_ports(HOST, 1)[0]) is None
