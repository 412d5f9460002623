"""Where the files of `envoy/` are: beside the code in a checkout, inside the package in a wheel."""

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent
_PLACES: Final = (_PACKAGE.parent / "envoy", _PACKAGE / "_envoy")


def envoy_file(name: str) -> Path:
    """The path of `envoy/<name>`, for instance `lua/agent.lua`.

    Raises:
        FileNotFoundError: the installation has no such file.
    """
    for place in _PLACES:
        path = place / name
        if path.is_file():
            return path
    raise FileNotFoundError(f"no envoy/{name} in {' or '.join(str(place) for place in _PLACES)}: reinstall Recursant")
