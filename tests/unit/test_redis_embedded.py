"""The embedded server as `recursant up` starts it."""

from pathlib import Path

import pytest
import redis
from redis_server import RedisServer

from recursant.store.embedded import embedded_redis_command


def test_keeps_nothing_over_a_restart(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url) as client:
        client.set("key", "value")
    redis_server.restart_empty()
    with redis.Redis.from_url(redis_server.url) as client:
        assert client.get("key") is None
    assert [path.name for path in redis_server.directory.iterdir()] == ["redis.log"]


def test_is_bounded_and_evicts_nothing(redis_server: RedisServer) -> None:
    with redis.Redis.from_url(redis_server.url, decode_responses=True) as client:
        assert client.config_get("maxmemory") == {"maxmemory": str(256 * 1024 * 1024)}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert client.config_get("save") == {"save": ""}
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


def test_listens_on_a_unix_socket_alone(tmp_path: Path) -> None:
    command = embedded_redis_command(tmp_path, unixsocket=tmp_path / "redis.sock")
    assert command[command.index("--unixsocket") + 1] == str(tmp_path / "redis.sock")
    assert command[command.index("--port") + 1] == "0"
    assert "--bind" not in command


@pytest.mark.parametrize("address", [{}, {"port": 1, "unixsocket": Path("redis.sock")}])
def test_wants_exactly_one_address(tmp_path: Path, address: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="either a port or a unixsocket"):
        embedded_redis_command(tmp_path, **address)  # type: ignore[arg-type]
