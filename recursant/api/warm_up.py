"""The warm-up hook (SPEC A4): told which family is wanted and that nobody has it. Nobody waits for it."""

import asyncio
import contextlib
import json
import logging
import os
import signal
from typing import Final

import httpx

from recursant.agents.policy import AgentPolicy
from recursant.config.model import WarmUpHook

# Hooks that run at one time, for as many families.
MAX_RUNNING: Final = 16
_SHOWN_OUTPUT: Final = 500

_log = logging.getLogger(__name__)


class WarmUp:
    """Runs the hook in the background: at most once at a time for each family, and never longer than it may.

    The command gets `RECURSANT_AGENT`, `RECURSANT_MODEL_FAMILY` and `RECURSANT_MODEL` in its environment, the URL a
    POST with `agent_id`, `model_family`, `model` and `reason`.
    """

    def __init__(self, hook: WarmUpHook, client: httpx.AsyncClient) -> None:
        self._hook = hook
        self._client = client
        self._running: dict[str, asyncio.Task[None]] = {}

    def ask_for(self, policy: AgentPolicy, reason: str) -> str:
        """Start it: `started`, `running` already, `busy` with other families, or `none` is configured."""
        if not self._hook.command and self._hook.url is None:
            return "none"
        key = policy.model_family or policy.model or ""
        if key in self._running:
            return "running"
        if len(self._running) >= MAX_RUNNING:
            return "busy"
        task = asyncio.create_task(self._run(policy, reason))
        self._running[key] = task
        task.add_done_callback(lambda _: self._running.pop(key, None))
        return "started"

    async def close(self) -> None:
        """End what is running."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, policy: AgentPolicy, reason: str) -> None:
        name = policy.model_family or policy.model or "any model"
        _log.info("warming up %s for the agent %s: %s", name, policy.agent_id, reason)
        try:
            async with asyncio.timeout(self._hook.timeout_ms / 1_000):
                if self._hook.command:
                    await self._execute(policy)
                if self._hook.url is not None:
                    await self._post(self._hook.url, policy, reason)
        except TimeoutError:
            _log.warning("the warm-up of %s took longer than %d ms", name, self._hook.timeout_ms)
        except (OSError, httpx.HTTPError) as error:
            _log.warning("the warm-up of %s failed: %s", name, error)

    async def _execute(self, policy: AgentPolicy) -> None:
        process = await asyncio.create_subprocess_exec(
            *self._hook.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # Ended with everything that it started.
            start_new_session=True,
            env={
                **os.environ,
                "RECURSANT_AGENT": policy.agent_id,
                "RECURSANT_MODEL_FAMILY": policy.model_family or "",
                "RECURSANT_MODEL": policy.model or "",
            },
        )
        try:
            _, errors = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            said = errors[-_SHOWN_OUTPUT:].decode(errors="replace").strip()
            _log.warning("the warm-up command ended with %d: %s", process.returncode, said)
        else:
            _log.info("the warm-up command for %s is done", policy.agent_id)

    async def _post(self, url: str, policy: AgentPolicy, reason: str) -> None:
        body = {"agent_id": policy.agent_id, "model_family": policy.model_family, "model": policy.model}
        response = await self._client.post(
            url,
            content=json.dumps({**body, "reason": reason}),
            headers={"content-type": "application/json"},
            timeout=None,
        )
        response.raise_for_status()
