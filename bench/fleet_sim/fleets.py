"""The fleets and agents of the scenarios."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from recursant.agents.policy import AgentPolicy
from recursant.agents.priority import PriorityClass
from recursant.config.model import Config
from recursant.sim.fleet.request import Request
from recursant.sim.fleet.spec import OnExhaustion, WorkerSpec
from recursant.sim.hardware import A100, LLAMA_3_8B
from recursant.sim.profiles import A100_LLAMA_3_8B, EngineProfile, profile_named, with_overrides
from recursant.sim.scaled import SHORT_BANDWIDTH, scaled_profile

QWEN = ("Qwen2.5-7B-Instruct", "qwen")
PHI = ("Phi-3-mini-4k-instruct", "phi")
DEEPSEEK = ("DeepSeek-Coder-33B", "deepseek")


@dataclass(frozen=True)
class Agents:
    """Who sends requests, as the gateways are configured, and what counts as in time."""

    config: Config

    @classmethod
    def nobody(cls) -> "Agents":
        """No agent at all."""
        return cls(Config())

    @property
    def families(self) -> Mapping[str, str]:
        """The family of each agent."""
        return {policy.agent_id: policy.model_family for policy in self.config.agents if policy.model_family}

    @property
    def targets_ms(self) -> Mapping[str, float]:
        """Each agent's target to the first token."""
        return {policy.agent_id: float(policy.latency_sla_ms or 0) for policy in self.config.agents}

    def urgent(self, request: Request) -> bool:
        """Is the request of a high class?"""
        return request.arrival.agent_id in self._urgent

    @property
    def _urgent(self) -> set[str]:
        return {each.agent_id for each in self.config.agents if each.priority_class >= PriorityClass.HIGH}


def _agent(agent_id: str, family: str, sla_ms: int, priority: int, fallback: str, **more: int | str) -> AgentPolicy:
    fields = {"agent_id": agent_id, "model_family": family, "latency_sla_ms": sla_ms, "priority": priority}
    return AgentPolicy.model_validate({**fields, "fallback_strategy": fallback, **more})


# The three agents of SPEC A2, as they stand there.
SPEC_AGENTS = Agents(
    Config(
        agents=(
            _agent("chat-web", "qwen", 800, 10, "queue_and_retry", min_vram_mb=3_200, retry_max=3, retry_delay_ms=200),
            _agent("code-completion", "deepseek", 2_000, 8, "degrade_to_qwen", min_vram_mb=6_400),
            _agent("batch-summary", "phi", 5_000, 1, "drop", min_vram_mb=1_200),
        )
    )
)
# One family: short requests that somebody waits for, and very long ones that nobody does.
SHORT_AND_LONG = Agents(
    Config(
        agents=(
            _agent(
                "short",
                "llama",
                800,
                10,
                "queue_and_retry",
                retry_max=25,
                on_memory_pressure="hold",
                max_new_tokens=128,
            ),
            _agent(
                "long", "llama", 10_000, 1, "reject", on_memory_pressure="hold", timeout_ms=15_000, max_new_tokens=1_000
            ),
        )
    )
)
# One agent for traces that know of none.
TRACE_AGENTS = Agents(
    Config(agents=(_agent("trace", "llama", 1_000, 10, "queue_and_retry", retry_max=75, retry_delay_ms=200),))
)
LONG_TRACE_AGENTS = Agents(
    Config(agents=(_agent("trace", "llama", 5_000, 10, "queue_and_retry", retry_max=75, retry_delay_ms=200),))
)

# The same for devices whose bandwidth others may take: it wants some of it left.
BANDWIDTH_AGENTS = Agents(
    Config(
        agents=(
            _agent(
                "trace",
                "llama",
                1_000,
                10,
                "queue_and_retry",
                retry_max=75,
                retry_delay_ms=200,
                min_bandwidth_mb_s=150_000,
            ),
        )
    )
)
# vLLM's own bound on the tokens of a step, for an A100.
A100_STEP_TOKENS = A100_LLAMA_3_8B.max_num_batched_tokens


def share_of(profile: EngineProfile, share: float) -> EngineProfile:
    """A part of a device: so much of its speed, its bandwidth and its memory."""
    return replace(
        profile,
        name=f"{share:g} of {profile.name}",
        token_times=tuple((tokens, seconds / share) for tokens, seconds in profile.token_times),
        attention_pair_s=profile.attention_pair_s / share,
        bandwidth_bytes_s=profile.bandwidth_bytes_s * share,
        kv_blocks=int(profile.kv_blocks * share),
        max_num_seqs=max(1, int(profile.max_num_seqs * share)),
    )


def spec_fleet() -> list[WorkerSpec]:
    """4 nodes of 2 GPUs, the models of SPEC A2: qwen and phi on two nodes, deepseek and qwen on the others."""
    return [
        WorkerSpec(A100_LLAMA_3_8B, models=(QWEN, PHI) if node % 2 == 0 else (DEEPSEEK, QWEN))
        for node in range(4)
        for _ in range(2)
    ]


def own_profiles_fleet() -> list[WorkerSpec]:
    """6 nodes of 2 A100s, each model with its own times: 2 workers of Qwen2-7B, 2 of Phi-3-mini, and 4 of
    DeepSeek-Coder-33B on two devices each."""
    kinds = (
        ("a100-qwen2-7b", QWEN, 2),
        ("a100-phi-3-mini", PHI, 2),
        ("a100-deepseek-coder-33b-tp2", DEEPSEEK, 4),
    )
    return [
        WorkerSpec(with_overrides(profile_named(name), max_num_batched_tokens=A100_STEP_TOKENS), models=(model,))
        for name, model, count in kinds
        for _ in range(count)
    ]


def short_of_bandwidth_fleet() -> list[WorkerSpec]:
    """Eight A100s. Others take 95 % of the memory bandwidth of two of them, where a prefill that takes 85 ms takes 320
    (SPEC); what these two report of their speed is from before."""
    left = scaled_profile(A100, LLAMA_3_8B, bandwidth_left=SHORT_BANDWIDTH)
    profile = with_overrides(
        left,
        max_num_batched_tokens=A100_STEP_TOKENS,
        max_model_len=A100_LLAMA_3_8B.max_model_len,
        kv_blocks=A100_LLAMA_3_8B.kv_blocks,
    )
    return [
        replace(spec, profile=profile, bandwidth_taken=1 - SHORT_BANDWIDTH, claims=A100_LLAMA_3_8B)
        if number < 2
        else spec
        for number, spec in enumerate(llama_fleet())
    ]


def llama_fleet(count: int = 8, *, profile: EngineProfile = A100_LLAMA_3_8B) -> list[WorkerSpec]:
    """So many equal workers of one model."""
    return [WorkerSpec(profile, models=(("Meta-Llama-3-8B", "llama"),)) for _ in range(count)]


def small_memory_fleet() -> list[WorkerSpec]:
    """Eight A100s of 40 GB: 92 % of them less 16 GB of weights and 3 GB of activations leave 8,300 blocks of 2 MiB, for
    133,000 tokens. Their engines fail the request that no memory is left for."""
    profile = with_overrides(A100_LLAMA_3_8B, kv_blocks=8_300)
    return [replace(spec, on_exhaustion=OnExhaustion.FAIL) for spec in llama_fleet(profile=profile)]


def uneven_fleet() -> list[WorkerSpec]:
    """Two whole devices, two halves and four quarters, each declaring the capacity that it has."""
    parts = (1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25)
    return [
        WorkerSpec(share_of(A100_LLAMA_3_8B, part) if part < 1 else A100_LLAMA_3_8B, models=(("llama", "llama"),))
        for part in parts
    ]


def long_context(profile: EngineProfile = A100_LLAMA_3_8B) -> EngineProfile:
    """The profile with room for prompts of 128k tokens, as the Mooncake traces have them."""
    return with_overrides(profile, max_model_len=131_072, max_num_batched_tokens=8_192)
