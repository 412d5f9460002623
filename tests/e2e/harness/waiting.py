"""Waiting for what other processes do, each wait bounded."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import httpx

WAIT_S = 20.0
_T = TypeVar("_T")


def alive(pid: int) -> bool:
    """Does the process exist, and is it more than a zombie that nobody has collected yet?"""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(
    condition: Callable[[], _T], timeout: float = WAIT_S, *, interval: float = 0.05, what: str = "the condition"
) -> _T:
    """Ask until the answer is truthy, and return it; exceptions of HTTP clients count as "not yet".

    The timeout bounds a hang; it is no performance target.
    """
    deadline = time.monotonic() + timeout
    last: object = None
    while time.monotonic() < deadline:
        try:
            if last := condition():
                return last
        except httpx.HTTPError as error:
            last = error
        time.sleep(interval)
    raise AssertionError(f"not within {timeout:g} s: {what}; last answer {last!r}")
