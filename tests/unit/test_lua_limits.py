"""The bound on the output that the body's Lua enforces: read as vLLM reads it, never wider than the policy's."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lua_kit import Outcome, Script

BODY = Script("body")
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"


def run(body: str, bound: int | None, path: str = CHAT, **decision: Any) -> Outcome:
    headers = {":method": "POST", ":path": path, "content-type": "application/json"}
    if bound is not None:
        decision["max_tokens"] = bound
    return BODY.run(headers=headers, decision=decision, body=body.encode())


def edited(body: str, bound: int | None, path: str = CHAT) -> tuple[str, str | None]:
    """The body on its way on, and what the script says that it did."""
    outcome = run(body, bound, path)
    assert outcome.passed, outcome.message
    after = body if outcome.body is None else outcome.body.decode()
    return after, outcome.metadata.get("recursant/clamped")


def said(value: object) -> object:
    return value.decode() if isinstance(value, bytes) else value


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('{"messages":[],"max_tokens":101}', '{"messages":[],"max_tokens":100}'),
        ('{"messages":[], "max_tokens" : 1e9 ,"x":1}', '{"messages":[], "max_tokens" : 100 ,"x":1}'),
        ('{"messages":[],"max_completion_tokens":5000}', '{"messages":[],"max_completion_tokens":100}'),
        ('{"messages":[],"max_tokens":200,"max_completion_tokens":5}', None),
        ('{"messages":[],"max_tokens":1,"max_tokens":200}', '{"messages":[],"max_tokens":1,"max_tokens":100}'),
        ('{"messages":[],"max\\u005ftokens":200}', '{"messages":[],"max\\u005ftokens":100}'),
        ('{"messages":[],"max_tokens":"2000"}', '{"messages":[],"max_tokens":100}'),
        ('{"messages":[],"max_tokens":"2_000"}', '{"messages":[],"max_tokens":100}'),
        ('{"messages":[],"max_tokens":9,"min_tokens":900}', '{"messages":[],"max_tokens":9,"min_tokens":100}'),
    ],
)
def test_a_larger_bound_is_lowered_and_nothing_else_moves(before: str, after: str | None) -> None:
    expected = after or '{"messages":[],"max_tokens":100,"max_completion_tokens":5}'
    found, how = edited(before, 100)
    assert (found, said(how)) == (expected, "lowered")


@pytest.mark.parametrize(
    "body",
    [
        '{"messages":[],"max_tokens":100}',
        '{"messages":[],"max_completion_tokens":1,"max_tokens":null}',
        '{"messages":[],"max_tokens":"100"}',
        '{"messages":[{"max_tokens":9999}],"max_tokens":1,"x":{"max_tokens":9999}}',
        '{"max_tokens":7}',
    ],
)
def test_what_is_within_the_bound_stays(body: str) -> None:
    assert edited(body, 100) == (body, None)


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        (COMPLETIONS, '{"prompt":"x","max_tokens":101}', '{"prompt":"x","max_tokens":100}'),
        ("/my/agent", '{"prompt":"x","max_tokens":101}', '{"prompt":"x","max_tokens":100}'),
        (RESPONSES, '{"input":"x","max_output_tokens":101}', '{"input":"x","max_output_tokens":100}'),
    ],
)
def test_every_kind_has_its_own_bound(path: str, before: str, after: str) -> None:
    found, how = edited(before, 100, path)
    assert (found, said(how)) == (after, "lowered")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, '{"messages":[],"max_output_tokens":5}'),
        (COMPLETIONS, '{"prompt":"x","messages":[],"max_completion_tokens":5,"max_tokens":null}'),
        ("/my/agent", '{"prompt":"x","messages":[],"max_completion_tokens":5,"max_tokens":null}'),
        (RESPONSES, '{"input":"x","messages":[],"prompt":"x","max_tokens":5}'),
    ],
)
def test_a_bound_of_another_kind_is_none(path: str, body: str) -> None:
    after = json.loads(edited(body, 100, path)[0])
    assert after["max_output_tokens" if path == RESPONSES else "max_tokens"] == 100


def test_without_a_bound_nothing_is_done() -> None:
    body = '{"messages":[],"max_tokens":1000000}'
    assert edited(body, None) == (body, None)


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        (CHAT, '{"messages":[]}', '{"max_tokens":100,"messages":[]}'),
        ("/api/chat?x=/tokenize", '{"messages":[]}', '{"max_tokens":100,"messages":[]}'),
        (CHAT, '{"messages":[],"max_tokens":null}', '{"messages":[],"max_tokens":100}'),
        (CHAT, '{"messages":[],"max_tokens":5,"max_tokens":null}', '{"messages":[],"max_tokens":5,"max_tokens":100}'),
        (COMPLETIONS, '{"prompt":"x","max_tokens":null}', '{"prompt":"x","max_tokens":100}'),
        ("/my/agent", '{"prompt":"x","max_tokens":null}', '{"prompt":"x","max_tokens":100}'),
        (RESPONSES, '{ "input":"x"}', '{"max_output_tokens":100, "input":"x"}'),
    ],
)
def test_an_answer_without_bound_gets_one(path: str, before: str, after: str) -> None:
    found, how = edited(before, 100, path)
    assert (found, said(how)) == (after, "added")


def test_completions_bound_themselves_to_sixteen_tokens() -> None:
    assert edited('{"prompt":"x"}', 16, COMPLETIONS) == ('{"prompt":"x"}', None)
    assert edited('{"prompt":"x"}', 15, COMPLETIONS)[0] == '{"max_tokens":15,"prompt":"x"}'


@pytest.mark.parametrize("path", ["/tokenize", "/v1/embeddings", "/pooling?a=b", "/v1/rerank", "/v2/rerank", "/score"])
def test_paths_that_generate_nothing_are_left_alone(path: str) -> None:
    for body in ('{"messages":[],"input":"x"}', '{"prompt":"x","max_tokens":null}'):
        assert edited(body, 10, path) == (body, None)


def test_all_edits_together() -> None:
    outcome = run('{"model":"auto","messages":[]}', 100, model="m", priority=-2)
    assert outcome.body is not None
    assert json.loads(outcome.body) == {"model": "m", "messages": [], "max_tokens": 100, "priority": -2}


def test_the_route_s_own_bound_counts_while_extproc_is_away() -> None:
    headers = {":method": "POST", ":path": CHAT, "content-type": "application/json"}
    outcome = BODY.run(headers=headers, context={"max_tokens": 9}, body=b'{"messages":[],"max_tokens":10}')
    assert outcome.body == b'{"messages":[],"max_tokens":9}'


_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens")
_VALUES = st.one_of(
    st.none(), st.integers(1, 10**12), st.integers(1, 300), st.floats(1, 1e9).map(lambda x: round(x, 2))
)
_MEMBERS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(_LIMITS), _VALUES),
        st.tuples(st.sampled_from(["stream", "user", "max_token", "MAX_TOKENS"]), st.integers(0, 10**9)),
    ),
    max_size=8,
)


@given(_MEMBERS, st.integers(1, 500), st.sampled_from([CHAT, "/api/chat"]))
def test_whatever_a_chat_says_its_answer_is_bounded_and_never_widened(
    members: list[tuple[str, Any]], bound: int, path: str
) -> None:
    pairs = [("messages", []), *members]
    body = "{" + ",".join(f"{json.dumps(key)}:{json.dumps(value)}" for key, value in pairs) + "}"
    after, _ = edited(body, bound, path)
    before_read, after_read = json.loads(body), json.loads(after)

    def limit(content: dict[str, Any]) -> float:
        # As vLLM's chat does.
        first, second = content.get("max_completion_tokens"), content.get("max_tokens")
        limits = [each for each in (first, second) if each is not None]
        return float(limits[0]) if limits else float("inf")

    assert limit(after_read) == min(limit(before_read), bound)
    least = after_read.get("min_tokens")
    assert least is None or least <= bound
    others = [key for key in before_read if key not in _LIMITS]
    assert [before_read[key] for key in others] == [after_read[key] for key in others]
    # Once is enough.
    assert edited(after, bound, path) == (after, None)
