"""One `recursant up` in front of three real vLLM servers: two report from inside, one is scraped."""

from pathlib import Path
from typing import Any, Self

import httpx
from harness.stack import Stack
from vllm_rig import REQUEST_S, START_S, VllmServer, completion, say, wait_until

from recursant import names
from recursant.supervise.rundir import ENDPOINTS_FILE

# Blocks of 32 tokens: 2,560 tokens in all, little more than one request of the longest kind.
SMALL_KV_BLOCKS = 80
PRIORITY_SEQS = 4
# 7,168 tokens: fewer than four requests of the longest kind.
PRIORITY_KV_BLOCKS = 224
SMALL_SEQS = 8
CONFIG = """
routing: {timeout_ms: 120000}
# On shared cores extproc may come to its turn late. Envoy would go on without it, to any worker, and past all that is
# tested here.
extproc: {message_timeout_ms: 10000}
agents:
  - {agent_id: any, model_family: qwen, max_new_tokens: 2000}
  - {agent_id: patient, model_family: qwen, on_memory_pressure: hold}
  # These go to a full worker, too, so that vLLM has to choose among those that wait.
  - {agent_id: urgent, model_family: qwen, class: critical, fallback_strategy: round_robin}
  - {agent_id: report, model_family: qwen, class: low, fallback_strategy: round_robin}
"""


class Fleet:
    """The product and its workers `priority`, `small-kv` and `lora`."""

    def __init__(self, directory: Path) -> None:
        self.lora = VllmServer(
            directory,
            "lora",
            *("--num-gpu-blocks-override", "256", "--max-num-seqs", "8"),
            *("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8"),
            env={"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "RECURSANT_REDIS_URL": ""},
        )
        self.stack = Stack(directory / "up", workers=None, config=CONFIG, args=["--worker-urls", self.lora.url])
        self._directory = directory

    def start(self) -> Self:
        """Start the product, then the servers, and wait until it has all of them."""
        # Ready it is with its first worker, and the workers want its Redis.
        self.stack.start(until_ready=False)
        wait_until((self.stack.run_dir / ENDPOINTS_FILE).exists, what="the product says where it is")
        env = {"RECURSANT_REDIS_URL": self.stack.endpoints.redis}
        self.priority = VllmServer(
            self._directory,
            "priority",
            *("--scheduling-policy", "priority", "--max-num-seqs", str(PRIORITY_SEQS)),
            *("--num-gpu-blocks-override", str(PRIORITY_KV_BLOCKS)),
            env={**env, "RECURSANT_WORKER_ID": "priority"},
        )
        self.small = VllmServer(
            self._directory,
            "small-kv",
            *("--num-gpu-blocks-override", str(SMALL_KV_BLOCKS), "--max-num-seqs", str(SMALL_SEQS)),
            *("--max-num-queued-reqs", "32", "--shutdown-timeout", "10"),
            env={**env, "RECURSANT_WORKER_ID": "small-kv"},
        )
        say("starting three vLLM servers, one after the other")
        for server in self.servers:
            server.start().wait_ready()
        say(f"memory: {', '.join(f'{each.name} {each.memory_mb():.0f} MB' for each in self.servers)}")
        self.stack.wait_ready()
        self.wait_rested()
        return self

    @property
    def servers(self) -> tuple[VllmServer, ...]:
        return self.priority, self.small, self.lora

    def worker_id(self, server: VllmServer) -> str:
        """What the fleet calls a server."""
        return f"127.0.0.1:{server.port}" if server is self.lora else server.name

    def worker(self, server: VllmServer) -> dict[str, Any]:
        """A server as the control API shows it."""
        name = self.worker_id(server)
        return next(each for each in self.stack.workers() if each["id"] == name)

    def report(self, server: VllmServer) -> dict[str, Any]:
        """All that a server said last, as the control API shows it."""
        answer = httpx.get(
            f"{self.stack.endpoints.api}/v1/workers/{self.worker_id(server)}", timeout=REQUEST_S, trust_env=False
        )
        answer.raise_for_status()
        report: dict[str, Any] = answer.json()["report"]
        return report

    def wait_rested(self) -> None:
        """Wait until every server is idle and ready in the fleet."""
        for server in self.servers:
            server.wait_idle()
            wait_until(
                lambda server=server: self.worker(server)["status"] == "ready",
                START_S,
                what=f"{server.name} is ready in the fleet",
            )

    def restart_gateway(self) -> None:
        """Start extproc afresh: it knows nothing but what workers report."""
        self.stack.wait_restarted("extproc", self.stack.kill("extproc"))

        def knows_all() -> bool:
            metrics = self.stack.service_metrics("extproc")
            return metrics.value("recursant_workers", state="ready") >= len(self.servers)

        wait_until(knows_all, START_S, what="extproc knows every server")
        # Without it Envoy serves, too.
        wait_until(lambda: names.SERVED_BY in self.ask("/v1/completions", completion()).headers, what="it serves")

    def ask(self, path: str, body: Any, *, agent: str | None = "any", **options: Any) -> httpx.Response:
        """POST through the gateway."""
        headers = {**({"x-agent-id": agent} if agent else {}), **options.pop("headers", {})}
        return self.stack.client.post(path, json=body, headers=headers, timeout=REQUEST_S, **options)

    def close(self) -> None:
        """End everything."""
        for server in (getattr(self, "priority", None), getattr(self, "small", None), self.lora):
            if server is not None:
                server.close()
        self.stack.close()
