"""What all tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from redis_server import RedisServer

# By default an example that takes 200 ms fails, and so does slow data: on a busy machine anything does, now and then.
settings.register_profile("recursant", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("recursant")


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A running, empty Redis-compatible server of this test's own."""
    directory = tmp_path / "redis"
    directory.mkdir()
    server = RedisServer(directory).start()
    try:
        yield server
    finally:
        server.kill()
