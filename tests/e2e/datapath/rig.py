"""The rig: Envoy and the stand-ins around it, as one thing that starts, is asked, and ends."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
from envoy.service.accesslog.v3 import als_pb2_grpc
from envoy.service.discovery.v3 import ads_pb2_grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_pb2_grpc

from datapath.background import PATIENCE_S, Loop, eventually, free_port
from datapath.client import Client
from datapath.control_plane import AccessLog, Ads
from datapath.ext_proc import HEALTHY, ExtProc
from datapath.standard import standard_config, standard_fleet
from datapath.worker import Seen, Worker
from recursant.config.model import Config
from recursant.fleet.worker import WorkerRecord
from xds_server.resources.bootstrap import render
from xds_server.resources.build import build


class Rig(Client):
    """Envoy, its control plane, an ext_proc and some workers."""

    def __init__(
        self,
        directory: Path,
        config: Config,
        hosts: Sequence[str] = ("127.0.0.1",) * 3,
        dead_ext_procs: int = 0,
        **envoy_options: str,
    ) -> None:
        super().__init__(free_port())
        self.directory = directory
        self.loop = Loop()
        self.ads = Ads()
        self.log = AccessLog()
        self.ext_proc = ExtProc()
        self.workers = [Worker(f"w{index}", host) for index, host in enumerate(hosts)]
        self._options = envoy_options
        self._xds_port = free_port()
        self.admin_port = free_port()
        self.socket = directory / "extproc.sock"
        # Others that are configured, but never listen.
        self._ext_procs = [self.socket, *(directory / f"dead-{index}.sock" for index in range(dead_ext_procs))]
        self.config = self.placed(config)
        self.fleet: list[WorkerRecord] = []
        self._xds: Any = None
        self._ext_proc_server: Any = None
        self._envoy: subprocess.Popen[bytes] | None = None

    def placed(self, config: Config) -> Config:
        """The configuration with this rig's addresses."""
        gateway = config.gateway.model_copy(update={"port": self.port, "admin_port": self.admin_port})
        ext_proc = config.extproc.model_copy(update={"listen": tuple(f"unix:{path}" for path in self._ext_procs)})
        xds = config.xds.model_copy(update={"port": self._xds_port})
        return config.model_copy(update={"gateway": gateway, "extproc": ext_proc, "xds": xds})

    def start(self) -> Self:
        for worker in self.workers:
            self.loop.run(worker.start())
        self.fleet = standard_fleet(self.workers)
        self.push()
        self.loop.run(self._serve_xds())
        self.start_ext_proc()
        bootstrap = self.directory / "bootstrap.yaml"
        bootstrap.write_text(render(self.config, "gateway-1"))
        program = shutil.which("envoy", path=str(Path(sys.executable).parent)) or "envoy"
        options = [part for key, value in self._options.items() for part in (f"--{key.replace('_', '-')}", value)]
        with (self.directory / "envoy.log").open("wb") as log:
            self._envoy = subprocess.Popen(
                [
                    program,
                    "-c",
                    str(bootstrap),
                    "--concurrency",
                    "1",
                    "--disable-hot-restart",
                    "-l",
                    "warning",
                    *options,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        eventually(self._listening, f"Envoy listens; its log:\n{self.envoy_log()}")
        return self

    def _listening(self) -> bool:
        assert self._envoy is not None
        assert self._envoy.poll() is None, self.envoy_log()
        assert not self.ads.nacks, self.ads.nacks
        with contextlib.suppress(OSError):
            return self.get("/healthz").status == 200
        return False

    async def _serve_xds(self) -> None:
        self._xds = grpc.aio.server(options=[("grpc.http2.max_ping_strikes", 0)])
        ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(self.ads, self._xds)
        als_pb2_grpc.add_AccessLogServiceServicer_to_server(self.log, self._xds)
        self._xds.add_insecure_port(f"127.0.0.1:{self._xds_port}")
        await self._xds.start()

    def start_ext_proc(self) -> None:
        async def start() -> None:
            self._ext_proc_server = grpc.aio.server(
                options=[("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
            )
            ext_proc_pb2_grpc.add_ExternalProcessorServicer_to_server(self.ext_proc, self._ext_proc_server)
            health = grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": HEALTHY})
            self._ext_proc_server.add_generic_rpc_handlers((health,))
            self._ext_proc_server.add_insecure_port(f"unix:{self.socket}")
            await self._ext_proc_server.start()

        self.loop.run(start())

    def stop_ext_proc(self) -> None:
        if self._ext_proc_server is not None:
            self.loop.run(self._ext_proc_server.stop(0))
            self._ext_proc_server = None

    @contextlib.contextmanager
    def without_ext_proc(self) -> Iterator[None]:
        self.stop_ext_proc()
        try:
            yield
        finally:
            self.start_ext_proc()
            # Envoy dials again with the next request; wait until one really went through ext_proc.
            before = self.ext_proc.opened
            eventually(lambda: self.get("/readyz") and self.ext_proc.opened > before, "Envoy found ext_proc again")

    def push(self, config: Config | None = None, fleet: list[WorkerRecord] | None = None) -> None:
        """Give Envoy the resources of this configuration and fleet."""
        self.config = self.placed(config) if config is not None else self.config
        self.fleet = fleet if fleet is not None else self.fleet
        self.loop.run(self.ads.set(build(self.config, self.fleet)))

    def close(self) -> None:
        if self._envoy is not None:
            self._envoy.send_signal(signal.SIGTERM)
            try:
                self._envoy.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._envoy.kill()
                self._envoy.wait()
        self.stop_ext_proc()
        if self._xds is not None:
            self.loop.run(self._xds.stop(0))
        for worker in self.workers:
            self.loop.run(worker.stop())
        self.loop.close()

    def envoy_log(self) -> str:
        log = self.directory / "envoy.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def reset(self) -> None:
        self.ext_proc.reset()
        self.log.entries.clear()
        for worker in self.workers:
            worker.reset()

    # --- what reached the workers ---

    @property
    def seen(self) -> list[Seen]:
        """The requests that reached workers."""
        return [seen for worker in self.workers for seen in worker.seen]

    def only(self) -> Seen:
        assert len(self.seen) == 1, [seen.target for seen in self.seen]
        return self.seen[0]

    def by_worker(self) -> Counter[str]:
        return Counter({worker.name: len(worker.seen) for worker in self.workers if worker.seen})

    def stats(self, pattern: str) -> dict[str, int]:
        url = f"http://127.0.0.1:{self.admin_port}/stats?filter={pattern}"
        text = urllib.request.urlopen(url).read().decode()
        return {key: int(value) for key, value in re.findall(r"^(\S+): (\d+)$", text, re.MULTILINE)}


@contextlib.contextmanager
def running(directory: Path, config: Config | None = None, **options: Any) -> Iterator[Rig]:
    """A started rig with the standard fleet."""
    rig = Rig(directory, config or standard_config(), **options)
    try:
        yield rig.start()
    finally:
        rig.close()
