"""The embedded server as `recursant up` starts it."""

import redis
from redis_server import RedisServer


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
