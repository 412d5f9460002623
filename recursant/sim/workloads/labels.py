"""Agents for traces that name none."""

from collections.abc import Callable
from typing import Final

# The agent of a request with so many prompt and output tokens.
Label = Callable[[int, int], str]

# SPEC E1: below both, a request counts as short.
SHORT_PROMPT: Final = 512
SHORT_OUTPUT: Final = 128
# From here on a prompt counts as a document. Our choice: four times the median prompt of Azure's conversations.
LONG_PROMPT: Final = 4_096


def always(agent_id: str) -> Label:
    """All requests are this agent's."""

    def label(_prompt: int, _output: int) -> str:
        return agent_id

    return label


# The agent of a trace where nothing else is said.
ONE_AGENT: Final = always("trace")


def by_length() -> Label:
    """Requests are an agent's by their length: an assumption, for traces that do not tell."""

    def label(prompt: int, output: int) -> str:
        if prompt < SHORT_PROMPT and output < SHORT_OUTPUT:
            return "code-completion"
        return "batch-summary" if prompt >= LONG_PROMPT else "chat-web"

    return label
