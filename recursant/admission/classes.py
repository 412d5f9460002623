"""Priority classes by rule (SPEC E1, DESIGN §9), for what a policy leaves open.

A policy's explicit `class` is not moved at all. Otherwise the rules move a request within its agent: a short one goes
up one class at most, one whose text asks for a report goes to Low, and a real-time one becomes Critical where the
policy allows it. Requests without an agent are classed by the rules alone.
"""

from typing import Final

from recursant.admission.rules import ClassRules
from recursant.agents.policy import AgentPolicy
from recursant.agents.priority import PriorityClass

# Only the end of a prompt is searched: that is where the instruction stands, and it bounds the work.
SEARCHED_CHARACTERS: Final = 4_096


def class_by_rules(
    base: PriorityClass,
    policy: AgentPolicy | None,
    rules: ClassRules,
    *,
    input_tokens: int | None,
    output_tokens: int | None,
    text: str | None,
    real_time: bool,
) -> PriorityClass:
    """The class of a request.

    Args:
        base: from the policy's priority, or the default of requests without an agent.
        policy: of its agent.
        rules: what counts as short, and which words ask for a report.
        input_tokens: length of the prompt; None when unknown.
        output_tokens: bound on the answer; None when there is none.
        text: of the prompt; None where the body was not looked at.
        real_time: it says `X-Real-Time: true`.
    """
    if policy is not None and policy.class_ is not None:
        return base
    if real_time and policy is not None and policy.allow_real_time:
        return PriorityClass.CRITICAL
    if text is not None and rules.asks_for_report(text[-SEARCHED_CHARACTERS:]):
        return PriorityClass.LOW
    short = (
        input_tokens is not None
        and output_tokens is not None
        and input_tokens < rules.short_input_tokens
        and output_tokens < rules.short_output_tokens
    )
    if short:
        raised = PriorityClass.HIGH if policy is None else PriorityClass(min(int(base) + 1, int(PriorityClass.HIGH)))
        return max(base, raised)
    return base
