"""Keeps our own looks at vLLM's server out of its access log: a line a second would bury its clients' requests."""

import logging
from collections.abc import Container
from typing import Final

from recursant.worker.engine_look import HEALTH, MODELS, PAUSED

# uvicorn's, which logs (client's address, method, path, version, status).
ACCESS_LOGGER: Final = "uvicorn.access"
_ADDRESS, _PATH = 0, 2


class OwnLooks(logging.Filter):
    """Lets every line pass but those of our own requests.

    Args:
        addresses: "ip:port" of our connections; may change at any time.
    """

    def __init__(self, addresses: Container[str]) -> None:
        super().__init__()
        self._addresses = addresses

    def filter(self, record: logging.LogRecord) -> bool:
        """Is the line somebody else's?"""
        given = record.args
        if not isinstance(given, tuple) or len(given) <= _PATH:
            return True
        return given[_PATH] not in (HEALTH, MODELS, PAUSED) or given[_ADDRESS] not in self._addresses
