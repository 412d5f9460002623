"""An extproc as an older release might be: it knows less than the control plane, and refuses what it does not know.

python older_replica.py ARGUMENTS OF RECURSANT...
"""

from typing import Final

from extproc import policy_state
from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import PolicyError, decode
from recursant.cli import main

MOST_PRIORITY: Final = 100


def older_decode(data: bytes) -> AgentPolicy:
    policy = decode(data)
    if policy.priority > MOST_PRIORITY:
        reason = f"policy {policy.agent_id!r}: priority: Input should be less than or equal to {MOST_PRIORITY}"
        raise PolicyError(reason, "priority")
    return policy


if __name__ == "__main__":
    policy_state.decode = older_decode  # type: ignore[attr-defined]
    main()
