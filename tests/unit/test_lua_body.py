import json
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lua_kit import Outcome, Script

BODY = Script("body")
JSON = {":method": "POST", "content-type": "application/json"}
# As the script says.
MAX_DEPTH = 512


def run(body: bytes | str | None, headers: dict[str, str] | None = None, **decision: Any) -> Outcome:
    raw = body.encode() if isinstance(body, str) else body
    return BODY.run(headers=headers or JSON, decision=decision, body=raw)


def edited(body: bytes | str, **decision: Any) -> bytes:
    raw = body.encode() if isinstance(body, str) else body
    outcome = run(raw, **decision)
    assert outcome.passed, outcome.message
    return raw if outcome.body is None else outcome.body


# --- "model": "auto" (SPEC A5) ---


def test_auto_becomes_the_chosen_model_and_nothing_else_moves() -> None:
    before = b'{ "a" : 1e5 ,\n"model"\t: "auto" , "big":123456789012345678901234567890, "a":2, "u":"\\u00e9\xc3\xa9"}'
    after = edited(before, model="Qwen/Qwen2.5-7B")
    assert after == before.replace(b'"auto"', b'"Qwen/Qwen2.5-7B"')


@pytest.mark.parametrize(
    "body",
    [
        '{"messages":[{"model":"auto"}],"x":{"model":"auto"}}',
        '{"x":"model","y":"auto","model2":"auto","Model":"auto"}',
        '{"model":"Auto"}',
        '{"model":"auto "}',
        '{"model":null}',
        '{"model":""}',
        "{}",
        '{"a":"\\"model\\":\\"auto\\""}',
    ],
)
def test_only_the_top_level_model_that_says_auto_changes(body: str) -> None:
    assert edited(body, model="m") == body.encode()


@pytest.mark.parametrize("key", ['"model"', '"mod\\u0065l"', '"\\u006d\\u006F\\u0064\\u0065\\u006c"'])
@pytest.mark.parametrize("value", ['"auto"', '"\\u0061uto"', '"a\\u0075t\\u006F"'])
def test_escaped_spellings_count(key: str, value: str) -> None:
    assert edited(f"{{{key}:{value}}}", model="m") == f'{{{key}:"m"}}'.encode()


@pytest.mark.parametrize("key", ['"\\\\u006dodel"', '"mod\\\\u0065l"', '"model\\u0000"', '"model\\n"'])
def test_other_keys_are_not_taken_for_it(key: str) -> None:
    body = f'{{{key}:"auto"}}'
    json.loads(body)
    assert edited(body, model="m") == body.encode()


def test_of_duplicate_keys_every_one_is_edited() -> None:
    body = '{"model":"auto","model":"x","mod\\u0065l":"auto"}'
    assert edited(body, model="m") == b'{"model":"m","model":"x","mod\\u0065l":"m"}'


def test_the_name_is_written_as_json() -> None:
    after = edited('{"model":"auto"}', model='a"b\\c\nd')
    assert json.loads(after) == {"model": 'a"b\\c\nd'}


def test_without_a_model_auto_stays() -> None:
    assert edited('{"model":"auto"}') == b'{"model":"auto"}'


@pytest.mark.parametrize("value", ["1", "true", "[]", '["auto"]', "{}", '{"model":"auto"}', "-0.5e+3"])
def test_a_model_that_is_no_string_is_refused(value: str) -> None:
    outcome = run(f'{{"a":1,"model":{value},"b":2}}', model="m")
    assert (outcome.status, outcome.message) == (400, "model must be a string")


# --- the models that a request may use ---


def test_models_that_are_not_allowed_are_refused_with_those_that_are() -> None:
    outcome = run('{"model":"gpt-4"}', allowed_models=",a,b/c,")
    assert outcome.status == 403
    assert outcome.message == "this agent may not use the model 'gpt-4'; allowed are a, b/c"


@pytest.mark.parametrize(
    "body", ['{"model":"b/c"}', '{"model":"b\\/c"}', '{"model":"auto"}', '{"model":null}', '{"model":""}', "{}"]
)
def test_allowed_models_pass(body: str) -> None:
    assert run(body, allowed_models=",a,b/c,").passed


@pytest.mark.parametrize("name", ["a,b/c", ",", "a,", "b", "c", "A", "a ", "a\\u0000"])
def test_only_whole_names_count(name: str) -> None:
    assert run(f'{{"model":"{name}"}}', allowed_models=",a,b/c,").status == 403


def test_one_forbidden_among_duplicates_is_enough() -> None:
    assert run('{"model":"x","model":"a"}', allowed_models=",a,").status == 403
    assert run('{"model":"a","model":"x"}', allowed_models=",a,").status == 403


def test_a_name_from_a_client_is_shown_short_and_plain() -> None:
    message = run('{"model":"' + "\\u0007\\n" + "x" * 500 + '"}', allowed_models=",a,").message
    assert "??" + "x" * 126 + "'" in message


def test_names_beyond_ascii_match_escaped_or_not() -> None:
    for spelling in ("模型-😀", "\\u6a21\\u578b-\\ud83d\\ude00", "é\\u00e9"):
        name = json.loads(f'"{spelling}"')
        assert run(f'{{"model":"{spelling}"}}', allowed_models=f",{name},").passed


# --- another family stands in ---


def test_replaced_models_become_the_chosen_one() -> None:
    for sent in ('"d/v3"', '"d\\/v3"', '"auto"'):
        assert edited(f'{{"model":{sent}}}', model="q", replaced_models=",d/v2,d/v3,") == b'{"model":"q"}'


@pytest.mark.parametrize("name", ["d/v2,d/v3", "d", "v3", "other", ","])
def test_other_models_are_not_replaced(name: str) -> None:
    body = f'{{"model":"{name}"}}'
    assert edited(body, model="q", replaced_models=",d/v2,d/v3,") == body.encode()
    assert run(body, model="q", replaced_models=",d/v2,d/v3,", allowed_models=",q,").status == 403


# --- vLLM's priority ---


def test_priority_is_added_where_it_is_missing() -> None:
    assert edited('{"a":1}', priority=-2.0) == b'{"priority":-2,"a":1}'
    assert edited(' {  "a":1}', priority=0) == b' {"priority":0,  "a":1}'
    assert edited("{}", priority=-3) == b'{"priority":-3}'
    assert edited("{ \n }", priority=-3) == b'{"priority":-3 \n }'


@pytest.mark.parametrize("value", ["5", '"x"', "null", "[1,2]", '{"priority":1}', "-1.5e3"])
def test_a_clients_own_priority_is_overwritten(value: str) -> None:
    body = f'{{"priority" : {value} , "x":{{"priority":7}}}}'
    assert edited(body, priority=-1) == b'{"priority" : -1 , "x":{"priority":7}}'


def test_every_duplicate_of_it_is_overwritten() -> None:
    assert edited('{"priority":1,"prior\\u0069ty":2}', priority=-1) == b'{"priority":-1,"prior\\u0069ty":-1}'


def test_the_longest_spelling_of_a_key_is_found() -> None:
    key = "".join(f"\\u{ord(letter):04x}" for letter in "priority")
    assert edited(f'{{"{key}":1}}', priority=-1) == f'{{"{key}":-1}}'.encode()


def test_without_priority_scheduling_a_clients_own_stays() -> None:
    assert edited('{"priority":5}') == b'{"priority":5}'


def test_both_edits_in_any_order() -> None:
    assert edited('{"priority":1,"model":"auto"}', model="m", priority=-1) == b'{"priority":-1,"model":"m"}'
    assert edited('{"model":"auto","priority":1}', model="m", priority=-1) == b'{"model":"m","priority":-1}'
    assert edited('{"model":"auto"}', model="m", priority=-1) == b'{"priority":-1,"model":"m"}'


# --- malformed bodies ---


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the request body is empty"),
        (" \n\t\r", "the request body is empty"),
        (None, "the request body is empty"),
        ("[]", "the request body must be a JSON object"),
        ('"x"', "the request body must be a JSON object"),
        ("null", "the request body must be a JSON object"),
        ("x=1&y=2", "the request body must be a JSON object"),
        ('{"a":1} x', "the request body is not valid JSON"),
        ('{"a":1}{}', "the request body is not valid JSON"),
        ("{'a':1}", "the request body is not valid JSON"),
        ('{"a":NaN}', "the request body is not valid JSON"),
    ],
)
def test_what_is_wrong_is_said(body: str | None, message: str) -> None:
    outcome = run(body)
    assert (outcome.status, outcome.message) == (400, message)


@pytest.mark.parametrize(
    "body",
    [
        *("{", "{{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1,}', "{,}", '{"a" 1}', '{"a"::1}', "{1:2}", '{"a":}'),
        *('{"a":[}', '{"a":[1,]}', '{"a":[1}]', '{"a":[,1]}', '{"a":[1 2]}', '{"a":1 "b":2}', '{"a":[1]]}', "{}]"),
        *('{"a":[[],]}', '{"a":[{},]}', '{"a":{"b":{},}}', '{"a":{},}', '{"a":[],}', '{"a":[],"b"}', '{"a":{}{}}'),
        *('{"a":01}', '{"a":-}', '{"a":1.}', '{"a":.5}', '{"a":1e}', '{"a":1e+}', '{"a":+1}', '{"a":0x1}', '{"a":--1}'),
        *('{"a":tru}', '{"a":True}', '{"a":nul}', '{"a":truex}', '{"a":falsey}', '{"a":-Infinity}', '{"a":1a}'),
        *('{"a":"', '{"a":"\\', '{"a":"\\x"}', '{"a":"\\u12"}', '{"a":"\\u12g4"}', '{"a":"x\ny"}', '{"a":"\x00"}'),
        *(
            '{"a\n":1}',
            '{"a":1}\x00',
            "\x00{}",
            '{"a":1}\xa0',
            '{"a":"b"c}',
            '{"a":"\\u"}',
            '{"a":"\x1f"}',
            '{"a\\":1}',
        ),
    ],
)
def test_malformed_json_is_refused_before_any_worker(body: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        strict(body.encode())
    assert run(body).status == 400


def test_a_byte_order_mark_passes() -> None:
    assert edited(b'\xef\xbb\xbf{"model":"auto"}', model="m") == b'\xef\xbb\xbf{"model":"m"}'


@pytest.mark.parametrize("text", [b"\xff\xfe", b"\xed\xa0\x80", b"\\ud800", b"\\udc00\\ud800", b"\x7f", b"\xc0\x80"])
def test_invalid_utf8_and_lone_surrogates_pass_as_they_came(text: bytes) -> None:
    body = b'{"messages":"' + text + b'","' + text + b'":1,"model":"auto"}'
    assert edited(body, model="m") == body.replace(b'"auto"', b'"m"')


def test_nesting_is_bounded() -> None:
    def nested(depth: int, opening: str, closing: str) -> str:
        return '{"a":' + opening * (depth - 1) + closing * (depth - 1) + "}"

    assert run(nested(MAX_DEPTH, "[", "]")).passed
    assert run(nested(MAX_DEPTH + 1, "[", "]")).message == "the request body is nested too deeply"
    assert run('{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH).passed
    assert run('{"a":' * 1_000_000).message == "the request body is nested too deeply"


def test_depth_counts_what_is_open_not_what_there_was() -> None:
    assert run('{"a":[' + "[],{}," * 5_000 + "1]}").passed


@pytest.mark.parametrize("size", [1 << 20, 3 << 20, 10 << 20])
def test_long_prompts_pass(size: int) -> None:
    prompt = ('line "quoted" é \\ 字\n' * (size // 20))[:size]
    for ascii_only in (True, False):
        body = json.dumps({"messages": [{"content": prompt}], "model": "auto"}, ensure_ascii=ascii_only).encode()
        assert edited(body, model="m") == body.replace(b'"auto"', b'"m"')


# --- against Python's parser, which is what the worker uses ---


def strict(body: bytes) -> Any:
    """What a strict parser says: a JSON object, or ValueError. Any bytes may stand in strings."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    value = json.loads(body.decode("utf-8-sig", "surrogateescape"), parse_constant=refuse)
    if not isinstance(value, dict):
        raise TypeError("no object")
    return value


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(["model", "priority"]), inner, max_size=4)
    ),
    max_leaves=20,
)
_objects = st.dictionaries(
    st.text() | st.sampled_from(["model", "priority", "messages"]), _json | st.just("auto"), max_size=6
)


@settings(max_examples=300, deadline=None)
@given(_objects, st.booleans(), st.sampled_from([None, 0, 1, 2]))
def test_every_object_passes_and_keeps_its_meaning(
    content: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    body = json.dumps(content, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    outcome = run(body, model="the model", priority=-2)
    if not isinstance(content.get("model", ""), (str, type(None))):
        assert outcome.status == 400
        return
    expected = {**content, "priority": -2}
    if content.get("model") == "auto":
        expected["model"] = "the model"
    assert outcome.body is not None
    assert json.loads(outcome.body.decode("utf-8", "surrogatepass")) == expected


_TOKENS = [
    *'{}[]:,"\\ ',
    "\n",
    "\t",
    '"a"',
    '"model"',
    '"auto"',
    '"\\u0061"',
    "1",
    "-0",
    "0.5",
    "1e9",
    "01",
    "true",
    "null",
]


@settings(max_examples=1_000, deadline=None)
@given(st.lists(st.sampled_from(_TOKENS), max_size=14).map(lambda parts: "".join(["{", *parts, "}"]).encode()))
@example(b'{"a":[{}]}')
@example(b'{"":""}')
def test_it_accepts_what_python_accepts(body: bytes) -> None:
    try:
        strict(body)
    except (ValueError, TypeError):
        assert run(body).status == 400
    else:
        assert run(body).passed or "model must be" in run(body).message


def test_it_accepts_what_python_accepts_one_byte_off() -> None:
    """Every deletion, and random replacements, of a body with everything in it."""
    body = json.dumps(
        {"model": "x", "n": [1, -2.5, 1e9, True, False, None, {"a": {}}], "s": 'q"\\\n\u00e9\u0007', "m": [[], ""]}
    ).encode()
    chance = random.Random(7)
    damaged = [body[:at] + body[at + 1 :] for at in range(len(body))]
    for _ in range(1_500):
        at = chance.randrange(len(body))
        damaged.append(body[:at] + bytes([chance.choice(b'{}[]:,"\\0-.eEtn \n\x00\xff')]) + body[at + 1 :])
    for candidate in damaged:
        try:
            strict(candidate)
        except (ValueError, TypeError):
            assert run(candidate).status == 400, candidate
        else:
            assert run(candidate).passed or "model must be" in run(candidate).message, candidate


# --- what it leaves alone ---


@pytest.mark.parametrize(
    "headers",
    [
        {":method": "GET", "content-type": "application/json"},
        {":method": "POST"},
        {":method": "POST", "content-type": "multipart/form-data; boundary=x"},
        {":method": "POST", "content-type": "text/plain"},
        {":method": "POST", "content-type": "application/jsonx"},
        {":method": "POST", "content-type": ""},
    ],
)
def test_other_requests_pass_untouched(headers: dict[str, str]) -> None:
    outcome = run(b'\x00 no json "model":"auto"', headers, model="m", priority=1)
    assert outcome.passed
    assert outcome.body is None


@pytest.mark.parametrize(
    "kind", ["Application/JSON", "application/json;charset=utf-8", " application/json ", "x/y+json"]
)
def test_json_goes_by_several_names(kind: str) -> None:
    assert run("{", {":method": "POST", "content-type": kind}).status == 400


def test_an_encoded_json_body_is_refused() -> None:
    assert run(b"\x1f\x8b", {**JSON, "content-encoding": "gzip"}).status == 415
    assert run("{}", {**JSON, "content-encoding": "Identity"}).passed


# --- with extproc away ---


def test_the_routes_own_words_count_when_extproc_says_nothing() -> None:
    context = {"model": "m", "allowed_models": ",m,", "priority": -1.0}
    outcome = BODY.run(headers=JSON, context=context, body=b'{"model":"auto"}')
    assert outcome.body == b'{"priority":-1,"model":"m"}'
    assert outcome.metadata == {"recursant/fail_open": True}
    assert BODY.run(headers=JSON, context=context, body=b'{"model":"x"}').status == 403


def test_what_extproc_left_out_is_not_taken_from_the_route() -> None:
    context = {"model": "m", "allowed_models": ",m,", "priority": -1.0}
    outcome = BODY.run(headers=JSON, context=context, decision={"endpoints": "1.2.3.4:5"}, body=b'{"model":"x"}')
    assert outcome.passed
    assert outcome.body is None
    assert outcome.metadata == {}


def test_requests_without_a_body_are_counted_too() -> None:
    assert BODY.run(headers={":method": "GET"}).metadata == {"recursant/fail_open": True}
