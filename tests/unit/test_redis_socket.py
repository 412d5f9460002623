"""Redis at a Unix socket, as `redis.url: unix:///path` names it."""

import asyncio
from pathlib import Path

from registry_kit import report

from recursant.agents.policy import AgentPolicy
from recursant.store.embedded import embedded_redis_command
from recursant.store.policies import PolicyStore, StoredPolicy
from recursant.store.workers import WorkerStore


async def test_both_stores_work_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    process = await asyncio.create_subprocess_exec(
        *embedded_redis_command(tmp_path, port=0), "--unixsocket", str(path), stdout=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(20):
            while not path.exists():  # noqa: ASYNC110 - a file that another process makes
                await asyncio.sleep(0.02)
        workers, policies = WorkerStore(f"unix://{path}"), PolicyStore(f"unix://{path}")
        try:
            await workers.publish(report("w1"))
            assert [state.id for state in await workers.load()] == ["w1"]
            entry = StoredPolicy.of(AgentPolicy(agent_id="a"), set_by="me", set_at_ms=1)
            assert await policies.swap(None, entry)
            assert await policies.raw("a") is not None
        finally:
            await workers.close()
            await policies.close()
    finally:
        process.terminate()
        await process.wait()
