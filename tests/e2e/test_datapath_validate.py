"""Envoy itself says whether it would take the resources, and the bootstrap."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from datapath.standard import PHI, QWEN, record, standard_config
from envoy.config.bootstrap.v3.bootstrap_pb2 import Bootstrap
from envoy.config.core.v3.extension_pb2 import TypedExtensionConfig
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)

from recursant.config.model import Config, ExtProc, PathEntry, Xds
from recursant.data import envoy_file
from recursant.fleet.worker import WorkerRecord, WorkerStatus
from xds_server.resource import CLUSTER, EXTENSION_CONFIG, LISTENER, ROUTE
from xds_server.resources.bootstrap import render
from xds_server.resources.build import build

pytestmark = pytest.mark.e2e

ENVOY = shutil.which("envoy", path=str(Path(sys.executable).parent)) or "envoy"


def validate(bootstrap: Path) -> None:
    done = subprocess.run(
        [ENVOY, "--mode", "validate", "-c", str(bootstrap)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr.lower(), done.stderr


def static(config: Config, workers: list[WorkerRecord]) -> bytes:
    """All resources in one bootstrap: what comes by RDS and ECDS is put where the listener asks for it.

    Fields that xds-protos does not know are kept as they are.
    """
    bootstrap = Bootstrap()
    bootstrap.node.id = bootstrap.node.cluster = "validate"
    bootstrap.dynamic_resources.ads_config.api_type = 2
    bootstrap.dynamic_resources.ads_config.grpc_services.add().envoy_grpc.cluster_name = "xds"
    xds = bootstrap.static_resources.clusters.add(name="xds")
    xds.connect_timeout.seconds = 1
    found = {(resource.type_url, resource.name): resource.body for resource in build(config, workers)}
    for (kind, _), body in found.items():
        if kind == CLUSTER:
            bootstrap.static_resources.clusters.add().MergeFromString(body)
        elif kind == LISTENER:
            listener = Listener.FromString(body)
            packed = listener.filter_chains[0].filters[0].typed_config
            manager = HttpConnectionManager.FromString(packed.value)
            manager.route_config.MergeFromString(found[(ROUTE, manager.rds.route_config_name)])
            for each in manager.http_filters:
                if each.HasField("config_discovery"):
                    extension = TypedExtensionConfig.FromString(found[(EXTENSION_CONFIG, each.name)])
                    each.typed_config.CopyFrom(extension.typed_config)
            packed.value = manager.SerializeToString()
            bootstrap.static_resources.listeners.append(listener)
    return bootstrap.SerializeToString()


@pytest.mark.parametrize(
    ("config", "workers"),
    [
        (Config(), []),
        (
            standard_config(
                paths=[PathEntry(path="/api/chat", agent_id="chat-web", allow_client_agent=True)],
                extproc=ExtProc(listen=["unix:/run/a.sock", "127.0.0.1:9002"]),
            ),
            [
                record("w1", "10.0.0.1:8000", QWEN, PHI, priority_scheduling=True),
                record("w2", "[fd00::2]:8000", QWEN, exclusive=True),
                record("w3", "10.0.0.3:8000", PHI, status=WorkerStatus.DRAINING),
            ],
        ),
        (Config(extproc=ExtProc(listen=["extproc-1:9002", "extproc-2:9002"])), []),
    ],
    ids=["nothing configured", "everything", "by name"],
)
def test_envoy_takes_the_resources(tmp_path: Path, config: Config, workers: list[WorkerRecord]) -> None:
    bootstrap = tmp_path / "bootstrap.pb"
    bootstrap.write_bytes(static(config, workers))
    validate(bootstrap)


def test_envoy_takes_the_bootstrap_as_it_stands() -> None:
    validate(envoy_file("bootstrap.yaml"))


def test_envoy_takes_the_bootstrap_rendered(tmp_path: Path) -> None:
    bootstrap = tmp_path / "bootstrap.yaml"
    bootstrap.write_text(render(Config(xds=Xds(host="xds")), "gw-1"))
    validate(bootstrap)
