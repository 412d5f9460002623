"""JSON bodies: facts that everything behind can use, or an answer that says what is wrong."""

import json
from typing import Final

from extproc.body import MOST_TOKENS, is_json, read_json_body
from fuzz.targets import JSON_WORDS
from recursant.problems import ApiProblem, model_not_found
from recursant.routing.affinity_blocks import BLOCK_BYTES, MOST_BLOCKS


def check(data: bytes) -> None:
    """The input is the body."""
    plain, seeded = read_json_body(data), read_json_body(data, "qwen")
    is_json(data)
    if isinstance(plain, ApiProblem) or isinstance(seeded, ApiProblem):
        assert plain == seeded
        assert isinstance(plain, ApiProblem)
        assert plain.status == 400
        assert json.loads(plain.body())["error"]["message"] == plain.message
        return
    assert (plain.model, plain.max_tokens, plain.text) == (seeded.model, seeded.max_tokens, seeded.text)
    assert plain.model != ""
    assert plain.max_tokens is None or 1 <= plain.max_tokens <= MOST_TOKENS
    assert plain.blocks == ()
    # A character is four bytes of text at most, of JSON six; what has a form of its own is written out.
    assert len(seeded.blocks) <= min(MOST_BLOCKS, 12 * len(data) // BLOCK_BYTES + 1)
    assert all(0 <= block < 1 << 64 for block in seeded.blocks)
    if plain.model is not None:
        model_not_found(plain.model).body()


SEEDS: Final = (
    b'{"model": "auto", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 7}',
    b'{"model": "Qwen/Qwen2.5-7B-Instruct", "prompt": "' + b"a" * 1_100 + b'", "max_tokens": "+007.0"}',
    b'{"messages": [{"content": [{"type": "text", "text": "a"}, {"text": 1}]}], "tools": [{"a": 1.5}]}',
    b'{"input": ["a", 1e400], "max_output_tokens": 1e300}',
    b'{"max_completion_tokens": ' + b"9" * 400 + b"}",
    b'{"prompt": "\\ud83d\\ude00 \\ud800", "model": "\\udfff"}',
    b"\xff\xfe{\x00}\x00",
    b"[" * 1_200,
    # Once tried in all divisions of its zeros.
    b'{"max_tokens": "' + b"0" * 3_000 + b'x"}',
    b'{"tools": ' + b"[" * 400 + b"]" * 400 + b"}",
)
WORDS: Final = (
    *JSON_WORDS,
    *(b'"%s":' % key for key in (b"model", b"prompt", b"input", b"messages", b"tools", b"content", b"text", b"role")),
    *(b'"%s":' % key for key in (b"max_tokens", b"max_completion_tokens", b"max_output_tokens")),
    b'"auto"',
    b'"007.0"',
)
