"""Text and tokens of the simulated model."""

import hashlib
import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recursant.sim import text
from recursant.sim.reply import Reply, StopRule


def test_a_token_is_four_bytes() -> None:
    assert [text.count_tokens(value) for value in ("", "a", "abcd", "abcde", "é" * 3)] == [0, 1, 1, 2, 2]
    assert text.token_ids("abcde") == [0x64636261, 0x65]


def test_the_digest_is_of_the_exact_prompt() -> None:
    assert text.digest_of_prompt("hello") == hashlib.sha256(b"hello").hexdigest()[:12]
    assert text.digest_of_prompt("hello ") != text.digest_of_prompt("hello")
    assert text.digest_of_prompt([1, 2]) == hashlib.sha256(b"[1,2]").hexdigest()[:12]
    # JSON can carry half a surrogate pair.
    assert len(text.digest_of_prompt("\ud800")) == 12


def test_the_digest_of_messages_depends_on_their_content_not_on_their_spelling() -> None:
    messages = [{"role": "user", "content": "Grüße"}]
    canonical = b'[{"content":"Gr\\u00fc\\u00dfe","role":"user"}]'
    assert text.digest_of_messages(messages) == hashlib.sha256(canonical).hexdigest()[:12]
    respelled = json.loads('[ {"content": "Gr\\u00fc\\u00dfe",  "role": "user"} ]')
    assert text.digest_of_messages(respelled) == text.digest_of_messages(messages)
    assert text.digest_of_messages([{"role": "system", "content": "Grüße"}]) != text.digest_of_messages(messages)


def test_the_reply_names_the_prompts_length() -> None:
    parts = [{"type": "text", "text": "ab"}, {"type": "text", "text": "cd"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    assert text.messages_length(messages) == 4
    assert text.prompt_length("äöü") == 3


def test_a_chat_is_read_as_a_whole() -> None:
    messages = [{"role": "user", "content": "a"}]
    assert text.render_chat(messages) == b"<|user|>\na\n<|assistant|>\n"
    assert text.render_chat(messages, tools=[{"name": "f"}]).startswith(b"<|tools|>\n[")


def test_block_hashes_are_chained_and_of_full_blocks() -> None:
    data = bytes(range(250))
    hashes = text.block_hashes(data, 16)
    assert len(hashes) == 250 // 64
    assert text.block_hashes(data[:130], 16) == hashes[:2]
    changed = text.block_hashes(b"x" + data[1:], 16)
    assert not set(changed) & set(hashes)
    assert text.block_hashes(data, 16, "salt") != hashes


def reply(digest: str = "0123456789ab", **rule: object) -> Reply:
    return Reply(digest, 5, StopRule(**{"max_tokens": 10_000, **rule}))  # type: ignore[arg-type]


def test_a_reply_ends_by_itself_or_at_its_limit() -> None:
    natural = reply()
    assert text.SHORTEST_REPLY <= natural.tokens <= text.LONGEST_REPLY
    assert natural.finish_reason == "stop"
    assert (reply(max_tokens=3).tokens, reply(max_tokens=3).finish_reason) == (3, "length")
    assert (reply(max_tokens=500, ignore_eos=True).tokens) == 500
    assert reply(min_tokens=400).tokens == 400
    assert reply(max_tokens=natural.tokens).finish_reason == "stop"


def test_choices_and_seeds_differ_but_repeat() -> None:
    rule = StopRule(40, ignore_eos=True)
    texts = [Reply("0123456789ab", 5, rule, index=index, seed=seed).take(40) for index in (0, 1) for seed in (0, 7)]
    assert len(set(texts)) == 4
    assert all(one.startswith("0123456789ab 5 ") for one in texts)
    assert Reply("0123456789ab", 5, rule, seed=7).take(40) == texts[1]


@given(
    position=st.integers(0, 100), length=st.integers(1, 12), include=st.booleans(), chunks=st.lists(st.integers(1, 9))
)
def test_a_stop_string_cuts_the_text_where_it_first_is_complete(
    position: int, length: int, include: bool, chunks: list[int]
) -> None:
    limit = 60
    whole = "".join(islice(text.reply_tokens("0123456789ab", 5), limit))
    stop = whole[position : position + length]
    cut = Reply("0123456789ab", 5, StopRule(limit, ignore_eos=True, stop=(stop,), include_stop=include))
    assert cut.stop_reason == stop
    assert cut.finish_reason == "stop"
    at = whole.index(stop)
    expected = whole[: at + (len(stop) if include else 0)]
    tokens = cut.tokens
    got = "".join(cut.take(chunk) for chunk in [*chunks, limit])
    assert got == expected
    # As many tokens as are needed to see the stop string, and no more.
    pieces = list(islice(text.reply_tokens("0123456789ab", 5), limit))
    assert len("".join(pieces[: tokens - 1])) < at + len(stop) <= len("".join(pieces[:tokens]))


def test_the_first_complete_stop_string_wins() -> None:
    whole = "".join(islice(text.reply_tokens("0123456789ab", 5), 60))
    late, early = whole[40:45], whole[20:24]
    cut = reply(stop=(late, early))
    assert cut.stop_reason == early
    assert cut.take(1_000) == whole[: whole.index(early)]


def test_the_first_complete_stop_string_wins_over_the_first_begun() -> None:
    whole = "".join(islice(text.reply_tokens("0123456789ab", 5), 60))
    begun_first, complete_first = whole[20:40], whole[24:28]
    assert reply(stop=(begun_first, complete_first)).stop_reason == complete_first


def test_without_its_stop_string_a_reply_is_whole() -> None:
    plain, with_stop = reply(), reply(stop=("\n",))
    assert with_stop.stop_reason is None
    assert with_stop.take(1_000) == plain.take(plain.tokens)


@pytest.mark.parametrize("content", [None, "", "a", ["a", {"type": "text", "text": "b"}], [{"type": "image_url"}], 5])
def test_any_content_has_a_text(content: object) -> None:
    assert isinstance(text.content_text(content), str)
