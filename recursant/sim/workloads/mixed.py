"""The mixed loads of the specification, made from a seed.

Lengths are lognormal, which is close to what published traces show. Where a median and a 99th percentile are known
they give both parameters: sigma = ln(p99 / p50) / 2.326. Bounds cut off what a model's context cannot hold.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from recursant.sim.workloads.arrival import Arrival
from recursant.sim.workloads.conversation import Conversations
from recursant.sim.workloads.poisson import Bursts, arrival_times

# The 99th percentile of the normal distribution.
_Z99: Final = 2.326


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal token counts between two bounds.

    Attributes:
        median, p99: of the distribution without bounds.
        least, most: the bounds, included.
    """

    median: float
    p99: float
    least: int
    most: int

    def __post_init__(self) -> None:
        if not (0 < self.median <= self.p99 and 1 <= self.least <= self.most):
            raise ValueError("lengths need 0 < median <= p99 and 1 <= least <= most")

    def draw(self, source: random.Random) -> int:
        """One length."""
        sigma = log(self.p99 / self.median) / _Z99
        return min(self.most, max(self.least, round(source.lognormvariate(log(self.median), sigma))))


@dataclass(frozen=True, slots=True)
class AgentLoad:
    """What one agent sends.

    Attributes:
        agent_id: its name.
        share: of all requests, relative to the others'.
        prompt: new prompt tokens of a request; in a conversation, the history comes on top.
        output: tokens of the answer.
        system_tokens: the same at the beginning of every prompt of this agent.
        turns: requests of a conversation, in the mean; 1: each stands alone.
    """

    agent_id: str
    share: float
    prompt: Lengths
    output: Lengths
    system_tokens: int = 0
    turns: float = 1.0


# Chat: Azure's conversations (prompt p50 1,020, p99 4,142; answer p50 129, p99 601), the prompt being system prompt,
# history and question here. Code: Azure's code trace (medians: prompt 1,500, answer 13, as Splitwise says). Summaries:
# papers of vidur's arXiv set (prompt p50 2,697, p99 3,930; answer p50 166), cut at Phi-3-mini's 4,096. How far answers
# scatter around their medians in the last two is our choice.
CHAT: Final = AgentLoad("chat-web", 0.5, Lengths(100, 800, 8, 2_000), Lengths(129, 601, 2, 800), 512, 3.0)
CODE: Final = AgentLoad("code-completion", 0.3, Lengths(988, 3_500, 64, 5_000), Lengths(13, 128, 2, 256), 512)
SUMMARY: Final = AgentLoad("batch-summary", 0.2, Lengths(2_697, 3_930, 600, 3_500), Lengths(166, 500, 20, 500))
MIXED: Final = (CHAT, CODE, SUMMARY)

# 70 % short (SPEC E1: below 512 tokens, answers below 128) and 30 % very long, near what Llama-3-8B's 8,192 hold.
SHORT: Final = AgentLoad("short", 0.7, Lengths(160, 480, 16, 511), Lengths(48, 127, 4, 127))
LONG: Final = AgentLoad("long", 0.3, Lengths(5_600, 7_600, 4_096, 7_168), Lengths(420, 1_000, 128, 1_000))
SHORT_AND_VERY_LONG: Final = (SHORT, LONG)


def mixed(
    agents: Sequence[AgentLoad] = MIXED,
    *,
    rate: float,
    seconds: float,
    seed: int = 0,
    bursts: Bursts | None = None,
    max_context: int = 8_192,
) -> Iterator[Arrival]:
    """The requests of several agents at `rate` a second together, for `seconds`. Same arguments, same requests.

    Args:
        agents: who sends, and what.
        rate: requests a second of all agents, in the mean.
        seconds: how long.
        seed: of everything random.
        bursts: how the rate jumps; None: it does not.
        max_context: conversations begin anew before prompt and answer pass it, in tokens.

    Raises:
        ValueError: no agents, or a rate that is not above 0.
    """
    if not agents:
        raise ValueError("a load needs at least one agent")
    # Apart, so that a change of the lengths does not move the arrivals.
    times = arrival_times(rate, seconds, random.Random(f"times-{seed}"), bursts)
    return _requests(agents, times, random.Random(f"lengths-{seed}"), max_context)


def _requests(
    agents: Sequence[AgentLoad], times: Iterator[float], draw: random.Random, max_context: int
) -> Iterator[Arrival]:
    shares = [agent.share for agent in agents]
    conversations = Conversations(draw, max_context)
    for at in times:
        agent = draw.choices(agents, shares)[0]
        output = agent.output.draw(draw)
        turn = conversations.turn(agent.agent_id, agent.system_tokens, agent.prompt.draw(draw), output, agent.turns)
        yield Arrival(at, agent.agent_id, turn.prompt_tokens, output, turn.session_id, turn.blocks)
