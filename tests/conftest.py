"""What all tests share."""

import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from redis_server import RedisServer

from recursant.hot_path import is_compiled

ROOT = Path(__file__).parents[1]
# By default an example that takes 200 ms fails, and so does slow data: on a busy machine anything does, now and then.
settings.register_profile("recursant", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("recursant")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiled", action="store_true", help="the compiled packages are tested (make test-compiled)")


def pytest_configure(config: pytest.Config) -> None:
    """Nobody shall take tests of the sources for tests of the compiled packages, or the other way round."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    listed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["hot-path"]
    wanted: bool = config.getoption("--compiled")
    for name in (path.removesuffix(".py").replace("/", ".") for path in listed):
        spec = find_spec(name)
        if spec is None or spec.origin is None or is_compiled(spec.origin) is not wanted:
            found = "nothing" if spec is None else spec.origin
            raise pytest.UsageError(f"{name} is {found}, which is {'not ' if wanted else ''}compiled")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--compiled"):
        for item in items:
            for marker in item.iter_markers("plain"):
                item.add_marker(pytest.mark.skip(reason=f"only uncompiled: {marker.args[0]}"))


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
