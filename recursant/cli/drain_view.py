"""Waiting for a drain, with a line for every step of it."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from recursant.cli.errors import CommandError

# Between two questions. Seconds.
POLL_S: Final = 0.5


def wait_until_drained(
    worker: str,
    answer: Mapping[str, Any],
    ask: Callable[[], Mapping[str, Any]],
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
) -> None:
    """Say what is waited for, until the worker may be stopped.

    Args:
        worker: its id.
        answer: of the control API to the drain.
        ask: how far it is now.
        seconds: the longest wait.
        clock: monotonic seconds.
        sleep: waits.
        say: prints a line.

    Raises:
        CommandError: it was not done in time, somebody ended it, or the worker reports no longer.
    """
    deadline = clock() + seconds
    began = False
    said = ""
    while True:
        began = began or answer["draining"]
        if answer["safe_to_stop"]:
            say(f"{worker}: {answer['text']}")
            return
        if began and not answer["draining"]:
            raise CommandError(f"{worker} takes requests again: somebody ended its drain, or it was restarted")
        if answer["text"] != said:
            said = answer["text"]
            say(f"{worker}: {said}")
        if clock() >= deadline:
            raise CommandError(
                f"{worker} is not done within {seconds:g} s: {said}. It drains on: wait again, stop it and lose "
                f"what is left, or let it back with `recursant workers resume {worker}`"
            )
        sleep(min(POLL_S, max(0.0, deadline - clock())))
        answer = ask()
