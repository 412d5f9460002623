"""The simulated worker against real vLLM: the same requests to both (docs/simulated-worker.md has the table).

What is known to differ is named here and in the table; everything else must be equal.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from both import Ends, Engine, Hold, shape, start_sim
from fleet_rig import PRIORITY_KV_BLOCKS, PRIORITY_SEQS, SMALL_KV_BLOCKS, SMALL_SEQS, Fleet
from load import Load
from vllm_rig import BLOCK_TOKENS, MAX_MODEL_LEN, MODEL, completion, token_prompt, wait_until

# Of the simulated worker's profile.
SIM_BLOCK_TOKENS = 16
PRIORITY_SIM = (
    *("--scheduling-policy", "priority", "--max-num-seqs", str(PRIORITY_SEQS)),
    *("--kv-blocks", str(PRIORITY_KV_BLOCKS * BLOCK_TOKENS // SIM_BLOCK_TOKENS)),
)
MESSAGES = [{"role": "user", "content": "The queue holds"}]
COMPLETION = completion("The queue holds", max_tokens=4)
CHAT = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4, "ignore_eos": True, "temperature": 0}
RESPONSE = {"model": MODEL, "input": "The queue holds", "max_output_tokens": 4}
MESSAGE = {"model": MODEL, "messages": MESSAGES, "max_tokens": 4}
TOO_LONG = "zq " * 3_000
# vLLM's has some thirty labels; the simulated worker gives those that mean something to it.
CONFIG_INFO = "vllm:cache_config_info"
# On a busy machine looks and answers may come late, and show too little.
ATTEMPTS = 10
# Of a server that was put to sleep once.
SLEEP_OPERATIONS = "vllm:sleep_mode_operation"


@pytest.fixture(scope="module")
def sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A simulated worker with the settings of the real one called `priority`."""
    program, engine = start_sim(tmp_path_factory.mktemp("sim"), *PRIORITY_SIM)
    yield engine
    program.end()


@pytest.fixture
def slow_sim(tmp_path: Path) -> Iterator[Engine]:
    """The same, slow enough to be watched: some 5 ms a token."""
    program, engine = start_sim(tmp_path, *PRIORITY_SIM, "--speed", "0.2")
    yield engine
    program.end()


@pytest.fixture
def small_sim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A simulated worker with the settings of the real one called `small-kv`, slow enough to be watched."""
    blocks = SMALL_KV_BLOCKS * BLOCK_TOKENS // SIM_BLOCK_TOKENS
    arguments = ("--max-num-seqs", str(SMALL_SEQS), "--kv-blocks", str(blocks))
    program, engine = start_sim(tmp_path_factory.mktemp("small-sim"), *arguments)
    yield engine
    program.end()


@pytest.fixture
def real(fleet: Fleet) -> Engine:
    return Engine("vllm", fleet.priority.url)


def test_metrics_have_the_same_names_types_and_labels(real: Engine, sim: Engine) -> None:
    ours = sim.families()
    theirs = {name: form for name, form in real.families().items() if not name.startswith(SLEEP_OPERATIONS)}
    assert ours.pop(CONFIG_INFO)[0] == theirs[CONFIG_INFO][0]
    assert {"num_gpu_blocks", "block_size", "enable_prefix_caching"} <= set(theirs.pop(CONFIG_INFO)[1])
    assert ours == theirs


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", COMPLETION),
        ("/v1/completions", {**COMPLETION, "prompt": ["a b", "c d"]}),
        ("/v1/completions", {**COMPLETION, "n": 2, "temperature": 1}),
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", RESPONSE),
        ("/v1/messages", MESSAGE),
        ("/tokenize", {"model": MODEL, "prompt": "The queue"}),
    ],
    ids=["completion", "prompts", "choices", "chat", "response", "message", "tokenize"],
)
def test_whole_answers_have_the_same_form(real: Engine, sim: Engine, path: str, body: dict[str, Any]) -> None:
    theirs, ours = real.post(path, body), sim.post(path, body)
    assert ours.status_code == theirs.status_code == 200
    assert ours.headers["content-type"] == theirs.headers["content-type"]
    assert shape(ours.json()) == shape(theirs.json())


@pytest.mark.parametrize("path", ["/health", "/ping", "/version", "/load", "/kv_event_sources", "/v1/models", "/nope"])
def test_gets_have_the_same_form(real: Engine, sim: Engine, path: str) -> None:
    theirs, ours = real.get(path), sim.get(path)
    assert ours.status_code == theirs.status_code
    if theirs.text:
        assert shape(ours.json()) == shape(theirs.json())
    else:
        assert not ours.text


@pytest.mark.parametrize("options", [{}, {"include_usage": True}, {"continuous_usage_stats": True}], ids=str)
@pytest.mark.parametrize(("path", "body"), [("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)])
def test_streams_have_the_same_events(
    real: Engine, sim: Engine, path: str, body: dict[str, Any], options: dict[str, bool]
) -> None:
    asked = {**body, "stream_options": options} if options else body
    theirs, ours = one_by_one(real, sim, path, asked)
    assert [shape(chunk) for chunk in ours] == [shape(chunk) for chunk in theirs]


def one_by_one(real: Engine, sim: Engine, path: str, asked: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The events of both. Where vLLM's server comes late it puts tokens into one: it is asked until it does not."""
    ours = sim.chunks(path, asked)
    for _ in range(ATTEMPTS):
        theirs = real.chunks(path, asked)
        if len(theirs) >= len(ours):
            break
    return theirs, ours


def test_usage_in_every_chunk(real: Engine, sim: Engine) -> None:
    asked = {**COMPLETION, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    theirs, ours = ([chunk["usage"] for chunk in each] for each in one_by_one(real, sim, "/v1/completions", asked))
    for usages in (theirs, ours):
        assert [usage["completion_tokens"] for usage in usages] == [1, 2, 3, 4, 4]
        assert all(usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] for usage in usages)
    assert [usage.keys() for usage in ours] == [usage.keys() for usage in theirs]


def test_usage_counts_the_prompt_of_token_ids_alike(real: Engine, sim: Engine) -> None:
    body = completion(token_prompt(100), max_tokens=9)
    counted = [each.post("/v1/completions", body).json()["usage"]["completion_tokens"] for each in (real, sim)]
    assert counted == [9, 9]


def test_an_output_past_the_context_is_cut_alike(real: Engine, sim: Engine) -> None:
    for each, prompt in ((real, token_prompt(MAX_MODEL_LEN - 8)), (sim, "x" * 4 * (MAX_MODEL_LEN - 8))):
        choice = each.post("/v1/completions", completion(prompt, max_tokens=100)).json()
        assert choice["usage"]["completion_tokens"] == 8
        assert choice["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {**COMPLETION, "prompt": TOO_LONG}),
        ("/v1/completions", {**COMPLETION, "max_tokens": MAX_MODEL_LEN + 1}),
        ("/v1/completions", {**COMPLETION, "max_tokens": 0}),
        ("/v1/completions", {**COMPLETION, "max_tokens": "x"}),
        ("/v1/completions", {**COMPLETION, "model": "nope"}),
        ("/v1/completions", {**COMPLETION, "n": 0}),
        ("/v1/completions", {**COMPLETION, "min_tokens": 9}),
        ("/v1/completions", {**COMPLETION, "stop": [""]}),
        ("/v1/completions", {**COMPLETION, "prompt": ""}),
        ("/v1/completions", {**COMPLETION, "prompt": []}),
        ("/v1/completions", {"model": MODEL}),
        ("/v1/completions", {**COMPLETION, "stream_options": {"include_usage": True}}),
        ("/v1/completions", {**COMPLETION, "stream": "maybe"}),
        ("/v1/completions", {**COMPLETION, "priority": "x"}),
        ("/v1/completions", b'{"model":'),
        ("/v1/completions", b"[]"),
        ("/v1/chat/completions", {"model": MODEL}),
        ("/v1/chat/completions", {**CHAT, "messages": []}),
        ("/v1/chat/completions", {**CHAT, "messages": "x"}),
        ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": TOO_LONG}]}),
        ("/v1/chat/completions", {**CHAT, "max_tokens": MAX_MODEL_LEN + 1}),
        ("/v1/chat/completions", {**CHAT, "max_completion_tokens": 0}),
        ("/v1/chat/completions", {**CHAT, "model": "nope"}),
        ("/v1/responses", {**RESPONSE, "model": "nope"}),
        ("/v1/responses", {"model": MODEL}),
    ],
    ids=str,
)
def test_errors_are_the_same(real: Engine, sim: Engine, path: str, body: Any) -> None:
    theirs, ours = real.post(path, body), sim.post(path, body)
    assert error(ours) == error(theirs)


def error(answer: Any) -> tuple[int, Any, Any, Any, set[str]]:
    """All but the words."""
    found = answer.json()["error"]
    return answer.status_code, found["type"], found["param"], found["code"], set(found)


def test_a_body_that_is_no_json_media_type(real: Engine, sim: Engine) -> None:
    headers = {"content-type": "text/plain"}
    body = json.dumps(COMPLETION).encode()
    theirs, ours = (each.post("/v1/completions", body, headers=headers) for each in (real, sim))
    assert error(ours) == error(theirs)


def test_load_reports_on_answers_are_the_same(real: Engine, sim: Engine) -> None:
    for form in ("TEXT", "JSON", "BIN"):
        headers = {"endpoint-load-metrics-format": form}
        theirs, ours = (each.post("/v1/completions", COMPLETION, headers=headers) for each in (real, sim))
        assert ours.headers.get("endpoint-load-metrics") == theirs.headers.get("endpoint-load-metrics")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("max_tokens", each) for each in ("4", "4.0", 4.0, " +4 ", "0_4", "4.5", 4.5, "0x4", "4e0", "", "_4", [4])),
        *(("stream", each) for each in ("true", "ON", "y", 1, 1.0, "no", 0, 2, " true", "", [1])),
        *(("ignore_eos", "t"), ("priority", "3"), ("priority", 2.0), ("seed", "7"), ("seed", 1.5), ("n", "1")),
    ],
    ids=str,
)
def test_numbers_and_truth_values_are_read_alike(real: Engine, sim: Engine, field: str, value: Any) -> None:
    theirs, ours = (each.post("/v1/completions", {**COMPLETION, field: value}) for each in (real, sim))
    assert ours.status_code == theirs.status_code
    assert ours.headers["content-type"] == theirs.headers["content-type"]
    if ours.status_code != 200:
        assert error(ours) == error(theirs)


def both_held(real: Engine, sim: Engine, fleet: Fleet) -> list[tuple[Engine, Hold]]:
    """Both engines, each with what holds it."""
    return [(real, fleet.priority.stopped), (sim, sim.frozen)]


def watched(
    engine: Engine, hold: Hold, requests: Sequence[tuple[int, int]], *, prompt_tokens: int, bounds: Sequence[int]
) -> Sequence[tuple[int, ...]]:
    """Send requests to an engine that is held, let it go by little steps, and see how many ended, by their length.

    Args:
        engine: one of the two.
        hold: what holds it.
        requests: each a priority and a length of the answer.
        prompt_tokens: of each.
        bounds: of the lengths that are counted, as `Ends` has them.

    Returns:
        At each look, how many had ended of each length; at the last one all had.
    """
    ends = Ends(engine, *bounds)
    here = engine.load()
    with Load(engine.url) as load:
        with hold():
            for number, (priority, tokens) in enumerate(requests):
                prompt = token_prompt(prompt_tokens, number)
                body = completion(prompt, max_tokens=tokens, priority=priority, stream=False)
                load.start(f"{priority} {number}", body)
                wait_until(lambda: engine.load() - here >= len(load.calls), what="it has come")
        seen = ends.watch(hold, sum(bounds[0] < tokens <= bounds[-1] for _, tokens in requests))
        calls = load.wait()
    lengths = [tokens for _, tokens in requests]
    assert [(call.status, call.error, call.tokens) for call in calls] == [(200, "", each) for each in lengths]
    return seen


def test_priorities_are_served_in_the_same_order(real: Engine, slow_sim: Engine, fleet: Fleet) -> None:
    # All places are taken by the first: one is free soon, the others are not until all is over.
    running = [(-9, 15), *[(-9, 1_500)] * (PRIORITY_SEQS - 1)]
    waiting = [(5, 190), (5, 190), (0, 90), (-3, 45), (0, 90), (-3, 45)]
    for engine, hold in both_held(real, slow_sim, fleet):
        order: set[tuple[int, ...]] = set()
        for _ in range(ATTEMPTS):
            seen = watched(engine, hold, running + waiting, prompt_tokens=8, bounds=(20, 50, 100, 200))
            # The most urgent first, whenever they came; each class when the one before has ended.
            order.update(seen)
            assert order <= {
                *((0, 0, 0), (1, 0, 0), (2, 0, 0), (2, 1, 0), (2, 2, 0), (2, 2, 1), (2, 2, 2)),
            }, f"{engine.name}: {seen}"
            if len(order) > 3:
                break
        assert len(order) > 3, f"{engine.name}, too little was seen: {order}"


def test_the_same_request_is_preempted(real: Engine, slow_sim: Engine, fleet: Fleet) -> None:
    """Where the KV cache ends, the least important one gives way, of equal ones the last; and it loses no token."""
    requests = [(5, 600), (5, 450), (0, 600), (0, 600)]
    for engine, hold in both_held(real, slow_sim, fleet):
        before = engine.metric("vllm:num_preemptions_total")
        seen = watched(engine, hold, requests, prompt_tokens=1_400, bounds=(20, 500, 1_000))
        assert engine.metric("vllm:num_preemptions_total") > before
        # It has the shortest way to go, and ends last.
        assert all(not victim or others == 3 for victim, others in seen), f"{engine.name}: {seen}"


def test_preemption_loses_no_token(fleet: Fleet, small_sim: Engine) -> None:
    # All are there before the first runs: on a busy machine they might come one after the other.
    held: list[tuple[Engine, Hold]] = [
        (Engine("vllm", fleet.small.url), fleet.small.stopped),
        (small_sim, small_sim.frozen),
    ]
    for engine, hold in held:
        before, here = engine.metric("vllm:num_preemptions_total"), engine.load()
        with Load(engine.url) as load:
            with hold():
                for number in range(6):
                    load.start("long", completion(token_prompt(600, number), max_tokens=300))
                wait_until(lambda here=here, engine=engine: engine.load() - here >= 6, what="all have come")
            calls = load.wait()
        assert {(call.status, call.error, call.tokens) for call in calls} == {(200, "", 300)}
        assert engine.metric("vllm:num_preemptions_total") > before
