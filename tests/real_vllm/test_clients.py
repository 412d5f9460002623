"""Clients as people use them, unchanged but for the base URL, each in a process of the clients' own environment."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from fleet_rig import Fleet
from vllm_rig import CLIENTS_PYTHON, MODEL, REQUEST_S

SCRIPTS = Path(__file__).parent / "clients"
# litellm and langchain would call home, and time out where there is no network.
OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "NO_PROXY": "127.0.0.1"}


@pytest.fixture
def seen(fleet: Fleet, request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a client saw through the gateway."""
    done = subprocess.run(
        [CLIENTS_PYTHON, SCRIPTS / f"try_{request.param}.py", fleet.stack.endpoints.gateway, MODEL],
        env={**os.environ, **OFFLINE},
        capture_output=True,
        text=True,
        timeout=REQUEST_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("seen", ["openai", "langchain", "litellm", "anthropic"], indirect=True)
def test_answers_and_streams(seen: dict[str, Any]) -> None:
    assert seen["chat"]
    assert seen["streamed"]
    assert (seen["chat_tokens"], seen["streamed_tokens"]) == (8, 8)


@pytest.mark.parametrize("seen", ["openai"], indirect=True)
def test_openais_other_calls(seen: dict[str, Any]) -> None:
    assert MODEL in seen["models"]
    assert seen["completion"]
    assert seen["response"]
    assert seen["missing"] == "model_not_found"
    assert "max_tokens" in seen["refused"]


@pytest.mark.parametrize("seen", ["litellm", "anthropic"], indirect=True)
def test_errors_map_to_the_clients_own(seen: dict[str, Any]) -> None:
    assert seen["missing"] == 404
