"""What names a session, and the blocks of a prompt (SPEC C8, D1). Pure; nothing of what a client sends is kept."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

# A block of a prompt: so many bytes of its text, which count as so many tokens at 4 bytes each, as long as nobody knows
# better.
BLOCK_BYTES: Final = 1_024
BLOCK_TOKENS: Final = 256
# Blocks of one prompt that are looked at: half a MiB of text. What comes after leads nowhere else.
MOST_BLOCKS: Final = 512

_SESSION_BYTES: Final = 12
_HASH_BYTES: Final = 8


def session_key(agent: str, model: str, session: bytes) -> bytes:
    """Names a session among all of them: the same everywhere, and short, whatever the client calls it.

    Args:
        agent: whose session it is; two agents may use one name.
        model: the model or family that is asked for: a cache belongs to one.
        session: as the client calls it.
    """
    return blake2b(f"{agent}\0{model}\0".encode() + session, digest_size=_SESSION_BYTES).digest()


def prompt_bytes(content: Mapping[str, Any]) -> bytes:
    """The text of a request body in the order in which an engine reads it: tools, then messages, or the prompt.

    Not the engine's own template, and it need not be: bodies with equal beginnings must give equal beginnings.
    """
    parts: list[str] = []
    tools = content.get("tools")
    if isinstance(tools, list):
        parts.append(repr(tools))
    messages = content.get("messages")
    if isinstance(messages, list):
        for message in messages:
            if isinstance(message, dict):
                parts.append(f"\x1e{message.get('role')}\x1f{_text(message.get('content'))}")
    else:
        parts.append(_text(content.get("prompt", content.get("input"))))
    return "".join(parts).encode("utf-8", "replace")


def chained_blocks(text: bytes, seed: str) -> tuple[int, ...]:
    """The hashes of the whole blocks of a text, each chained with all before it.

    Args:
        text: from `prompt_bytes`.
        seed: what else must be equal: the model that is asked for.
    """
    found: list[int] = []
    last = blake2b(seed.encode("utf-8", "replace"), digest_size=_HASH_BYTES).digest()
    for end in range(BLOCK_BYTES, min(len(text), MOST_BLOCKS * BLOCK_BYTES) + 1, BLOCK_BYTES):
        last = blake2b(text[end - BLOCK_BYTES : end], digest_size=_HASH_BYTES, key=last).digest()
        found.append(int.from_bytes(last))
    return tuple(found)


def _text(content: Any) -> str:
    return content if isinstance(content, str) else repr(content)
