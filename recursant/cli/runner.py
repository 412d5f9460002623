"""Running a service in the foreground: event loop, signals, logs."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Final

from recursant.cli.errors import CommandError
from recursant.cli.options import LogFormat, LogLevel

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

Service = Callable[[asyncio.Event], Awaitable[None]]


def run_service(service: Service, *, level: LogLevel, log_format: LogFormat) -> None:
    """Run a service until SIGINT or SIGTERM; it then drains and returns. A second signal ends it at once.

    Raises:
        CommandError: it cannot listen where it should.
    """
    from recursant.logs import configure

    configure(level.value, log_format.value)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_until_signalled(service))
    except OSError as error:
        raise CommandError(str(error)) from error


async def _until_signalled(service: Service) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def received(number: signal.Signals) -> None:
        stop.set()
        # The next one has its usual effect.
        loop.remove_signal_handler(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, received, number)
    await service(stop)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # On an interpreter that it does not support.
        return None
    return uvloop.new_event_loop
