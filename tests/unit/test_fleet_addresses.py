"""Addresses of workers, and the choice among those that a name has."""

import pytest

from recursant.fleet.address import join_address, split_address
from recursant.fleet.names import NameTable, choose_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("vllm-node-01:8000", "vllm-node-01", 8000),
        ("10.0.0.7:1", "10.0.0.7", 1),
        ("[::1]:65535", "::1", 65535),
        ("[2001:db8::7]:8000", "2001:db8::7", 8000),
    ],
)
def test_splits_and_joins(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)
    assert join_address(host, port) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected"),
        ("vllm-node-01", "expected"),
        (":8000", "expected"),
        ("host:", "port"),
        ("host:0", "port"),
        ("host:65536", "port"),
        ("host:99999999999999999999", "port"),
        ("host:8000 ", "port"),
        ("host:-1", "port"),
        ("host:٨", "port"),
        ("::1:8000", "brackets"),
        ("[::1:8000", "brackets"),
        ("[host]:8000", "IPv6"),
        ("[fe80::1%eth0]:8000", "zone"),
        ("0.0.0.0:8000", "listen"),
        ("[::]:8000", "listen"),
        ("ho st:8000", "host name"),
        ("http://host:8000", "brackets"),
        ("h" * 254 + ":8000", "253"),
    ],
)
def test_refuses(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        split_address(text)


@pytest.mark.parametrize(
    ("current", "addresses", "chosen"),
    [
        (None, [], None),
        ("10.0.0.2", [], None),
        (None, ["10.0.0.9", "10.0.0.10"], "10.0.0.9"),  # by number, not by letters
        (None, ["10.0.0.10", "10.0.0.9"], "10.0.0.9"),  # whatever the order of the answer
        (None, ["2001:db8::1", "10.0.0.2"], "10.0.0.2"),
        (None, ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.9", ["10.0.0.2", "10.0.0.9"], "10.0.0.9"),  # it does not move while it is valid
        ("10.0.0.9", ["10.0.0.2", "10.0.0.3"], "10.0.0.2"),
        (None, ["fe80::1%eth0"], None),
        (None, ["fe80::1%eth0", "2001:db8::1"], "2001:db8::1"),
    ],
)
def test_chooses_one_address_and_keeps_it(current: str | None, addresses: list[str], chosen: str | None) -> None:
    assert choose_address(current, addresses) == chosen


def test_a_name_is_asked_for_while_somebody_is_there() -> None:
    table = NameTable()
    assert table.endpoint("w1", "node:8000") is None
    assert table.endpoint("w2", "node:8001") is None
    assert table.endpoint("w3", "10.0.0.3:8000") == "10.0.0.3:8000"
    assert table.names() == ["node"]
    assert sorted(table.answer("node", ["10.0.0.1"])) == ["w1", "w2"]
    assert table.endpoint("w2", "node:8001") == "10.0.0.1:8001"
    table.drop("w1")
    assert table.names() == ["node"]
    # It moves: the old name is nobody's any more, and the answer to it is nobody's either.
    assert table.endpoint("w2", "other:8001") is None
    assert table.names() == ["other"]
    assert table.answer("node", ["10.0.0.1"]) == []


def test_ipv6_is_written_in_one_way() -> None:
    assert NameTable().endpoint("w", "[2001:DB8:0:0::7]:8000") == "[2001:db8::7]:8000"
