"""A plan as plain data, for JSON and for the table, and the assumptions behind it."""

import math
from collections.abc import Sequence
from typing import Any

from recursant.admission.rules import WATER_MARK
from recursant.sizing.estimate import MOST_LOAD, UTILISATION_BOUND
from recursant.sizing.load import LENGTH_VARIATION, Group
from recursant.sizing.search import Choice, best
from recursant.sizing.settings import STEP_SHARE


def plan_document(
    planned: Sequence[tuple[Group, Sequence[Choice]]], *, source: str, goal: float, simulated: bool, generated: bool
) -> dict[str, Any]:
    """The whole plan.

    Args:
        planned: each group of agents with the kinds that were tried.
        source: where the load comes from, for people.
        goal: share of requests to be in time.
        simulated: whether the fleet simulation checked the numbers.
        generated: whether the requests were made from rates.
    """
    groups = [_group(group, choices) for group, choices in planned]
    devices = [one["best"]["devices"] for one in groups if one["best"] is not None]
    return {
        "load": source,
        "goal": goal,
        "simulated": simulated,
        "groups": groups,
        "devices": sum(devices) if len(devices) == len(groups) else None,
        "assumptions": assumptions(goal, simulated=simulated, generated=generated),
    }


def assumptions(goal: float, *, simulated: bool, generated: bool) -> list[str]:
    """What the numbers rest on, a sentence each."""
    lines = [
        (
            "Step times come from published operator profiles or are scaled from them, attention is estimated "
            "(docs/calibration.md has the errors). Quantised models and speculative decoding are not modelled."
        ),
        (
            f"The estimate is a steady state: {UTILISATION_BOUND:.0%} of what a worker takes at the very most, "
            f"its KV cache filled to {WATER_MARK:.0%}, no bursts, every prefix seen before found in a cache."
        ),
        (
            "Agents of one family share workers; no worker serves two families. Devices of all kinds count the same: "
            "weigh them with your prices."
        ),
        (
            f"max-num-batched-tokens keeps a full step within {STEP_SHARE:.0%} of the tightest target; max-num-seqs is "
            "what the KV cache holds; max-model-len is the longest request that the model can take."
        ),
    ]
    if simulated:
        lines.append(
            "Checked by simulation with Recursant's routing and two gateways: each agent has at least "
            f"{goal:.1%} of its requests served with the first token in time. No faults; prefix caching and priority "
            f"scheduling on. Whatever it says, workers are loaded to {MOST_LOAD:.0%} of the most they take, no more."
        )
    else:
        lines.append("Not simulated: whether the targets are met is not known.")
    if generated:
        lines.append(
            "Requests come at random (Poisson); lengths are lognormal with a standard deviation of "
            f"{LENGTH_VARIATION:.0%} of the mean. A trace of your own is better."
        )
    else:
        lines.append("The trace's busiest window counts; prompts share prefixes only where the trace says so.")
    return lines


def _group(group: Group, choices: Sequence[Choice]) -> dict[str, Any]:
    found = best(choices)
    count = len(group.arrivals)
    return {
        "family": group.family,
        "agents": [
            {"agent_id": policy.agent_id, "latency_sla_ms": policy.latency_sla_ms, "priority": policy.priority}
            for policy in group.policies
        ],
        "requests_s": group.rate,
        "mean_prompt_tokens": sum(one.prompt_tokens for one in group.arrivals) / count,
        "mean_output_tokens": sum(one.output_tokens for one in group.arrivals) / count,
        "kinds": [_choice(group, choice) for choice in choices],
        "best": None if found is None else _choice(group, found),
    }


def _choice(group: Group, choice: Choice) -> dict[str, Any]:
    document: dict[str, Any] = {
        "kind": choice.profile.name,
        "workers": choice.workers,
        "devices": choice.devices,
        "estimated_workers": choice.estimated,
        "most_requests_s": choice.most_requests_s,
        "load": None if not choice.workers else group.rate / (choice.workers * choice.most_requests_s),
        "why_not": choice.why_not or None,
        "settings": None,
        "flags": None,
        "agents": [],
    }
    if choice.settings is not None:
        settings = choice.settings
        document["settings"] = {
            "max_model_len": settings.max_model_len,
            "max_num_seqs": settings.max_num_seqs,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
        }
        tp = choice.profile.devices
        document["flags"] = settings.flags + (f" --tensor-parallel-size {tp}" if tp > 1 else "")
    if choice.result is not None:
        document["peak_kv_usage"] = choice.result.peak_kv_usage
        document["preemptions"] = choice.result.preemptions
        document["agents"] = [
            {
                "agent_id": agent.agent_id,
                "requests": agent.requests,
                "target_ms": agent.target_ms,
                # JSON knows no NaN.
                "p50_ms": None if math.isnan(agent.p50_ms) else agent.p50_ms,
                "p99_ms": None if math.isnan(agent.p99_ms) else agent.p99_ms,
                "in_time": agent.in_time,
                "shed": agent.shed,
            }
            for agent in choice.result.agents
        ]
    return document
