"""How a simulated worker's reply begins, for tests that say whether a prompt came through whole."""

from collections.abc import Sequence
from typing import Any

from recursant.sim.text import digest_of_messages, messages_length


def reply_start(messages: Sequence[Any]) -> str:
    """The beginning of the reply to chat messages, if it has at least two tokens."""
    return f"{digest_of_messages(messages)} {messages_length(messages)}"
