"""Talking to the control API from client commands."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from recursant.cli.errors import CommandError
from recursant.cli.options import DEFAULT_RUN_DIR
from recursant.names import API_PORT, LOOPBACK
from recursant.supervise.endpoints import EndpointsError, read_endpoints

TOKEN_VARIABLE: Final = "RECURSANT_API_TOKEN"  # noqa: S105 - its name, not its value
_TIMEOUT_S: Final = 10.0


def find_api(api: str | None, run_dir: Path | None) -> str:
    """The base URL of the control API: as named, else of the run directory, else the default address.

    Raises:
        CommandError: the run directory was named, and nothing runs there.
    """
    if api is not None:
        return api.rstrip("/")
    try:
        return read_endpoints(run_dir or DEFAULT_RUN_DIR).api
    except EndpointsError as error:
        if run_dir is not None:
            raise CommandError(str(error)) from error
        return f"http://{LOOPBACK}:{API_PORT}"


def get_json(api: str, path: str) -> Any:
    """GET a document.

    Raises:
        CommandError: nobody answers, or with an error.
    """
    return send_json("GET", api, path)


def send_json(method: str, api: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
    """Send a request, with `body` as JSON where there is one; the document that it answers.

    The token of the environment, if there is one, goes with it.

    Raises:
        CommandError: nobody answers, or with an error.
    """
    import httpx

    try:
        # A proxy of the environment is for the world outside, not for our own control plane.
        token = os.environ.get(TOKEN_VARIABLE)
        sent = {**(headers or {}), **({"authorization": f"Bearer {token}"} if token else {})}
        response = httpx.request(method, f"{api}{path}", json=body, headers=sent, timeout=_TIMEOUT_S, trust_env=False)
        response.raise_for_status()
        return response.json()
    except httpx.InvalidURL as error:
        raise CommandError(f"{api!r} is not a URL: {error}") from error
    except httpx.HTTPStatusError as error:
        raise CommandError(f"{api}{path} answers {error.response.status_code}: {_said(error.response)}") from error
    except httpx.HTTPError as error:
        raise CommandError(
            f"no control API at {api} ({error}): is `recursant up` running? "
            "Name another with --api, --run-dir or RECURSANT_API"
        ) from error
    except ValueError as error:
        raise CommandError(f"{api}{path} does not answer with JSON: is this the control API?") from error


def isolation_path(worker: str) -> str:
    """The path of a worker's isolation."""
    return f"/v1/workers/{quote(worker, safe='')}/isolation"


def drain_path(worker: str) -> str:
    """The path of a worker's drain."""
    return f"/v1/workers/{quote(worker, safe='')}/drain"


def _said(response: Any) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return str(response.reason_phrase)
