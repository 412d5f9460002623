"""What the simulated model reads and writes: tokens by length, and text that shows whether the prompt arrived whole.

A reply begins with a digest of the prompt and the prompt's length, then goes on with words that follow from the
digest. Whoever sent the prompt can compute the beginning, so a prompt that was damaged on the way is visible.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

# A token is four bytes of UTF-8: near the average of common tokenizers for English, and cheap.
TOKEN_BYTES: Final = 4
DIGEST_LENGTH: Final = 12

# Replies end by themselves after a number of tokens that follows from the digest, in this range.
SHORTEST_REPLY: Final = 24
LONGEST_REPLY: Final = 128

_VOCABULARY: Final = (
    "able acid arch back ball band bell bird blue boat bold book bowl calm card cave chef city clay coin cold corn "
    "dawn deer desk door dune dust east echo edge face farm fern fire fish flag fold fork gate gold hail hand harp "
    "herb hill iron isle jade kite lake lamp leaf lime mast mill moon moss nest oak pine rain reed salt sand star"
)
_WORDS: Final = tuple(f" {word}" for word in _VOCABULARY.split())
# Constants of Knuth's MMIX linear congruential generator.
_MULTIPLIER: Final = 6_364_136_223_846_793_005
_INCREMENT: Final = 1_442_695_040_888_963_407
_MASK: Final = (1 << 64) - 1

Prompt = str | Sequence[int]


def count_tokens(text: str | bytes) -> int:
    """Tokens of a text."""
    return -(-len(_encoded(text)) // TOKEN_BYTES)


def token_ids(text: str | bytes) -> list[int]:
    """The ids of a text's tokens: each is its bytes, read as a little-endian number."""
    data = _encoded(text)
    return [int.from_bytes(data[i : i + TOKEN_BYTES], "little") for i in range(0, len(data), TOKEN_BYTES)]


def digest_of_prompt(prompt: Prompt) -> str:
    """The digest that the reply to a completion prompt begins with: of the text's UTF-8, or of the list of ids."""
    return _digest(_encoded(prompt if isinstance(prompt, str) else _canonical(list(prompt))))


def digest_of_messages(messages: Sequence[Any]) -> str:
    """The digest that the reply to chat messages begins with.

    Of the messages as compact ASCII JSON with their keys in order, so that it does not depend on white space,
    escapes or key order, and on everything else.
    """
    return _digest(_encoded(_canonical(list(messages))))


def prompt_length(prompt: Prompt) -> int:
    """The length that the reply to a completion prompt names: characters, or token ids."""
    return len(prompt)


def messages_length(messages: Sequence[Any]) -> int:
    """The length that the reply to chat messages names: the characters of their text."""
    return sum(len(content_text(message.get("content"))) for message in messages)


def content_text(content: Any) -> str:
    """The text of a message's content: itself, its text parts joined, or other parts as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(
            part["text"]
            if isinstance(part, dict) and isinstance(part.get("text"), str)
            else part
            if isinstance(part, str)
            else _canonical(part)
            for part in content
        )
    return _canonical(content)


def render_chat(messages: Sequence[Any], tools: Any = None) -> bytes:
    """The chat template: what the model reads."""
    parts = [f"<|tools|>\n{_canonical(tools)}\n"] if tools else []
    for message in messages:
        parts.append(f"<|{message.get('role', '')}|>\n{content_text(message.get('content'))}\n")
        if message.get("tool_calls"):
            parts.append(f"{_canonical(message['tool_calls'])}\n")
    parts.append("<|assistant|>\n")
    return _encoded("".join(parts))


def prompt_bytes(prompt: Prompt) -> bytes:
    """What the model reads of a completion prompt: four bytes for every token id."""
    if isinstance(prompt, str):
        return _encoded(prompt)
    return b"".join([(token & 0xFFFF_FFFF).to_bytes(TOKEN_BYTES, "little") for token in prompt])


def reply_tokens(digest: str, length: int, variant: int = 0) -> Iterator[str]:
    """The reply's tokens, without end. `variant` sets apart the choices and seeds of one prompt, after the start."""
    yield digest
    yield f" {length}"
    state = (int(digest, 16) ^ (variant * _MULTIPLIER)) & _MASK
    while True:
        state = (state * _MULTIPLIER + _INCREMENT) & _MASK
        yield _WORDS[(state >> 33) % len(_WORDS)]


def natural_length(digest: str, variant: int = 0) -> int:
    """After how many tokens the reply ends by itself."""
    return SHORTEST_REPLY + (int(digest, 16) + 31 * variant) % (LONGEST_REPLY - SHORTEST_REPLY + 1)


def block_hashes(data: bytes, block_tokens: int, salt: object = None) -> list[int]:
    """The chained hashes of the full KV blocks of what the model reads. Comparable within one process only."""
    size = block_tokens * TOKEN_BYTES
    parent = hash(salt)
    hashes = []
    for start in range(0, len(data) - size + 1, size):
        parent = hash((parent, data[start : start + size]))
        hashes.append(parent)
    return hashes


def _encoded(text: str | bytes) -> bytes:
    # JSON can carry lone surrogates ("\ud800"), which strict UTF-8 refuses.
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def _canonical(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), sort_keys=True)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:DIGEST_LENGTH]
