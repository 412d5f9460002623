"""`endpoints.json`: what `recursant up` started, where it listens, and its process ids."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from recursant.supervise.rundir import ENDPOINTS_FILE


class EndpointsError(Exception):
    """The file is not there or cannot be read. The text is one line for the operator."""


@dataclass(frozen=True, slots=True)
class WorkerEndpoint:
    """A worker; `pid` is None for one that we did not start, and while a simulated one is away."""

    id: str
    url: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class ProcessEndpoint:
    """A process; `pid` is None while it is away."""

    name: str
    pid: int | None
    address: str


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The document.

    Attributes:
        version: of Recursant.
        run_dir: absolute path of the run directory.
        pid: of `recursant up` itself.
        gateway, admin, api: base URLs, of Envoy's listener, Envoy's admin interface and the control API.
        xds: host:port of the ADS server.
        redis: URL; may hold a password.
        extproc: listening addresses, `unix:/path` or `host:port`.
        metrics: URLs of the services' own metrics.
        pids: names and process ids of the children that run now.
    """

    version: str
    run_dir: str
    pid: int
    gateway: str
    admin: str
    api: str
    xds: str
    redis: str
    extproc: list[str]
    metrics: dict[str, str]
    workers: list[WorkerEndpoint] = field(default_factory=list)
    processes: list[ProcessEndpoint] = field(default_factory=list)
    pids: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the text of the file.

        Raises:
            ValueError: it is not one of ours.
        """
        try:
            document: dict[str, Any] = json.loads(text)
            document["workers"] = [WorkerEndpoint(**worker) for worker in document["workers"]]
            document["processes"] = [ProcessEndpoint(**process) for process in document["processes"]]
            return cls(**document)
        except (TypeError, KeyError) as error:
            raise ValueError(f"unexpected content: {error}") from error


def read_endpoints(run_dir: Path) -> Endpoints:
    """Read the file of a run directory.

    Raises:
        EndpointsError: nothing runs there, or the file is not one of ours.
    """
    path = run_dir / ENDPOINTS_FILE
    try:
        return Endpoints.from_json(path.read_text())
    except FileNotFoundError:
        raise EndpointsError(f"no {path}: is `recursant up` running there?") from None
    except (OSError, ValueError) as error:
        raise EndpointsError(f"cannot read {path}: {error}") from error
