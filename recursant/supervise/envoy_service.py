"""One Envoy in the foreground, drained when it is told to stop."""

import asyncio
import signal
import tempfile
from pathlib import Path
from typing import Final

from recursant.config.model import Config
from recursant.fleet.address import join_address
from recursant.supervise.child import Child
from recursant.supervise.envoy import EnvoyAdmin, envoy_binary, envoy_command
from recursant.supervise.plan import ENVOY, dialled
from recursant.supervise.probe import HttpProbe
from recursant.supervise.process import ProcessSpec

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


async def serve(config: Config, *, node_id: str, concurrency: int | None, drain_s: float, log_level: str) -> None:
    """Run Envoy until SIGINT or SIGTERM, then drain it. It writes to our own standard output and error.

    Raises:
        FileNotFoundError: there is no Envoy.
        StartError: it ended by itself; whoever runs us decides about another start.
    """
    from xds_server.resources.bootstrap import render

    admin = EnvoyAdmin(dialled(config.gateway.admin_host), config.gateway.admin_port)
    with tempfile.TemporaryDirectory(prefix="recursant-") as folder:
        bootstrap = Path(folder) / "envoy.yaml"
        bootstrap.write_text(render(config, node_id))
        envoy = Child(
            ProcessSpec(
                name=ENVOY,
                command=envoy_command(envoy_binary(), bootstrap, log_level=log_level, concurrency=concurrency),
                ready=HttpProbe(admin.host, admin.port, "/ready"),
                address=join_address(config.gateway.host, config.gateway.port),
                restart=None,
                quiesce=lambda: admin.drain(drain_s),
            ),
            log=None,
            on_event=lambda _: None,
        )

        def received() -> None:
            if stopping.is_set():
                envoy.kill()
            stopping.set()
            envoy.stop()

        stopping = asyncio.Event()
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, received)
        await envoy.run()
