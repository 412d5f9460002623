"""The worker's HTTP API, over HTTP: vLLM's shapes, vLLM's errors, and text that shows the prompt."""

import hashlib
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from sim_kit import MODEL, PATIENCE_S, Sim, events, running
from sim_reply import reply_start

JSON = {"content-type": "application/json"}

# vLLM 0.32's metrics, without what counters and histograms append, and their labels.
WITH_ENGINE = {
    "estimated_flops_per_gpu_total",
    "estimated_read_bytes_per_gpu_total",
    "estimated_write_bytes_per_gpu_total",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "external_prefix_cache_hits_total",
    "mm_cache_queries_total",
    "mm_cache_hits_total",
    "num_preemptions_total",
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "generation_tokens_total",
    "request_prompt_tokens_count",
    "request_generation_tokens_count",
    "iteration_tokens_total_count",
    "request_max_num_generation_tokens_count",
    "request_params_n_count",
    "request_params_max_tokens_count",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "request_time_per_output_token_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_queue_time_seconds_count",
    "request_inference_time_seconds_count",
    "request_prefill_time_seconds_count",
    "request_decode_time_seconds_count",
    "request_num_preemptions_count",
    "request_prefill_kv_computed_tokens_count",
}
WITH_LABEL = {
    "num_requests_waiting_by_reason": ("reason", {"capacity", "deferred"}),
    "engine_sleep_state": ("sleep_state", {"awake", "weights_offloaded", "discard_all"}),
    "prompt_tokens_by_source_total": ("source", {"local_compute", "local_cache_hit", "external_kv_transfer"}),
    "prompt_tokens_cached_by_source_total": ("source", {"device", "host", "p2p", "disk", "external_unspecified"}),
    "request_success_total": ("finished_reason", {"stop", "length", "abort", "error", "repetition"}),
}


@pytest.fixture
async def sim() -> AsyncIterator[Sim]:
    async with running() as started:
        yield started


def start_for_prompt(prompt: str) -> str:
    """How a reply begins, computed without the simulator's help."""
    return f"{hashlib.sha256(prompt.encode()).hexdigest()[:12]} {len(prompt)}"


async def test_models(sim: Sim) -> None:
    body = (await sim.client.get("/v1/models")).json()
    assert body["object"] == "list"
    (card,) = body["data"]
    assert (card["id"], card["object"], card["owned_by"]) == (MODEL, "model", "vllm")
    assert (card["root"], card["parent"], card["max_model_len"]) == (MODEL, None, 16_384)


async def test_adapters_are_models_too() -> None:
    async with running(lora_adapters=("sql",)) as sim:
        cards = (await sim.client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [(MODEL, None), ("sql", MODEL)]
        assert (await sim.complete(model="sql")).json()["model"] == "sql"
        assert 'running_lora_adapters="sql"' in (await sim.client.get("/metrics")).text


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_health_is_an_empty_200(sim: Sim, path: str) -> None:
    response = await sim.client.get(path)
    assert (response.status_code, response.content) == (200, b"")


async def test_small_routes(sim: Sim) -> None:
    assert (await sim.client.get("/version")).json() == {"version": "0.32.0"}
    assert (await sim.client.get("/load")).json() == {"server_load": 0}
    assert (await sim.client.get("/kv_event_sources")).json() == {}
    unknown = await sim.client.get("/v1/load_lora_adapter")
    assert (unknown.status_code, unknown.json()) == (404, {"detail": "Not Found"})
    wrong = await sim.client.get("/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


async def test_load_counts_when_told_to() -> None:
    async with running(server_load_tracking=True) as sim:
        await sim.fault("freeze")
        async with sim.client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}):
            assert (await sim.client.get("/load")).json() == {"server_load": 1}
            await sim.client.delete("/sim/faults")


async def test_completion(sim: Sim) -> None:
    response = await sim.complete("hello world", max_tokens=5)
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert (body["object"], body["model"]) == ("text_completion", MODEL)
    assert body["id"].startswith("cmpl-")
    (choice,) = body["choices"]
    assert choice["text"].startswith(start_for_prompt("hello world") + " ")
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    # 11 bytes are 3 tokens of 4.
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 5
    assert body["usage"]["total_tokens"] == 8


async def test_a_completion_has_16_tokens_unless_asked_otherwise(sim: Sim) -> None:
    assert (await sim.complete()).json()["usage"]["completion_tokens"] == 16


async def test_several_prompts_and_choices(sim: Sim) -> None:
    body = (await sim.complete(["one", "two"], n=2, max_tokens=4)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    starts = [" ".join(choice["text"].split()[:2]) for choice in body["choices"]]
    assert starts == [start_for_prompt("one")] * 2 + [start_for_prompt("two")] * 2
    assert body["usage"]["completion_tokens"] == 16
    assert body["usage"]["prompt_tokens"] == 2


async def test_token_ids_are_a_prompt(sim: Sim) -> None:
    body = (await sim.complete([5, 6, 7], max_tokens=2)).json()
    assert body["choices"][0]["text"] == f"{hashlib.sha256(b'[5,6,7]').hexdigest()[:12]} 3"
    assert body["usage"]["prompt_tokens"] == 3


async def test_chat(sim: Sim) -> None:
    body = (await sim.chat("Grüße", max_completion_tokens=6)).json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert "tool_calls" not in choice["message"]
    start = reply_start([{"role": "user", "content": "Grüße"}])
    assert choice["message"]["content"].startswith(start)
    assert body["usage"]["completion_tokens"] == 6
    assert body["system_fingerprint"] == sim.worker.id


async def test_a_chat_ends_by_itself(sim: Sim) -> None:
    body = (await sim.chat("hello")).json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert 24 <= body["usage"]["completion_tokens"] <= 128


async def test_stop_seed_and_unknown_fields(sim: Sim) -> None:
    whole = (await sim.complete("x", max_tokens=20, seed=3, ignore_eos=True, my_field={"a": 1}, logprobs=2)).json()
    text = whole["choices"][0]["text"]
    again = (await sim.complete("x", max_tokens=20, seed=3, ignore_eos=True)).json()
    assert again["choices"][0]["text"] == text
    other = (await sim.complete("x", max_tokens=20, seed=4, ignore_eos=True)).json()
    assert other["choices"][0]["text"] != text
    word = text.split()[6]
    cut = (await sim.complete("x", max_tokens=20, seed=3, stop=word)).json()["choices"][0]
    assert cut["text"] == text[: text.index(word)]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", word)


async def test_completion_stream(sim: Sim) -> None:
    whole = (await sim.complete("tell me", max_tokens=9)).json()
    response = await sim.complete("tell me", max_tokens=9, stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, end = events(response.text)
    assert end == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"text_completion"}
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert not any("usage" in chunk for chunk in chunks)
    assert chunks[-1]["system_fingerprint"] == sim.worker.id


async def test_chat_stream_with_usage(sim: Sim) -> None:
    whole = (await sim.chat("a", "b", max_tokens=7)).json()
    response = await sim.chat("a", "b", max_tokens=7, stream=True, stream_options={"include_usage": True})
    first, *chunks, last, end = events(response.text)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"
    content = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert content == whole["choices"][0]["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert last["choices"] == []
    assert last["usage"] == {key: value for key, value in whole["usage"].items() if not key.endswith("_details")}
    assert end == "[DONE]"
    assert len({chunk["id"] for chunk in (first, *chunks, last)}) == 1


async def test_continuous_usage(sim: Sim) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await sim.chat("a", max_tokens=3, stream=True, stream_options=options)
    *chunks, end = events(response.text)
    assert end == "[DONE]"
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0
    assert counts[-2:] == [3, 3]
    assert counts == sorted(counts)


async def test_streams_of_several_choices(sim: Sim) -> None:
    whole = (await sim.chat("a", n=3, max_tokens=6)).json()
    *chunks, _ = events((await sim.chat("a", n=3, max_tokens=6, stream=True)).text)
    texts = ["", "", ""]
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"]["content"]
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert len(set(texts)) == 3


async def test_the_request_id_becomes_the_id(sim: Sim) -> None:
    for path, prefix in (("/v1/completions", "cmpl-"), ("/v1/chat/completions", "chatcmpl-")):
        body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        response = await sim.client.post(path, json=body, headers={"X-Request-Id": "mine-1"})
        assert response.json()["id"] == f"{prefix}mine-1"
        # vLLM does not send it back unless told to.
        assert "x-request-id" not in response.headers


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param", "phrase"),
    [
        ("completions", {"model": "nope", "prompt": "a"}, 404, "NotFoundError", "model", f"Valid aliases: {MODEL}"),
        ("completions", {"prompt": "x" * 65_600}, 400, "BadRequestError", "input_tokens", "maximum context length"),
        ("completions", {"prompt": "a", "max_tokens": 20_000}, 400, "BadRequestError", "max_tokens", "max_model_len"),
        ("completions", {"prompt": "a", "max_tokens": 0}, 400, "BadRequestError", "max_tokens", "at least 1"),
        ("completions", {"prompt": "a", "max_tokens": "9x"}, 400, "Bad Request", "body.max_tokens", "integer"),
        ("completions", {"prompt": "a", "n": 0}, 400, "BadRequestError", None, "at least 1"),
        ("completions", {"prompt": "a", "stop": [""]}, 400, "BadRequestError", None, "empty"),
        ("completions", {"prompt": []}, 400, "BadRequestError", None, "at least one prompt"),
        ("completions", {"prompt": ""}, 400, "BadRequestError", "prompt", "empty"),
        ("completions", {"prompt": {}}, 400, "Bad Request", "body.prompt", "valid string"),
        ("completions", {}, 400, "BadRequestError", "prompt", "prompt"),
        ("completions", {"prompt": "a", "model": 7}, 400, "Bad Request", "body.model", "string"),
        ("completions", {"prompt": "a", "stream_options": {}}, 400, "BadRequestError", "stream_options", "stream"),
        ("completions", {"prompt": "a", "stream": "maybe"}, 400, "Bad Request", "body.stream", "boolean"),
        ("completions", {"prompt": "a", "priority": 1.5}, 400, "Bad Request", "body.priority", "integer"),
        ("chat/completions", {}, 400, "Bad Request", "body.messages", "required"),
        ("chat/completions", {"messages": []}, 400, "BadRequestError", None, "empty"),
        ("chat/completions", {"messages": ["a"]}, 400, "Bad Request", "body.messages.0", "dictionary"),
        ("chat/completions", {"messages": [{}]}, 400, "Bad Request", "body.messages.0.role", "required"),
        ("embeddings", {"input": "a"}, 400, "BadRequestError", None, "does not support Embeddings API"),
        ("embeddings", {"model": "nope", "input": "a"}, 404, "NotFoundError", "model", "nope"),
        ("responses", {"input": "a", "stream": True}, 400, "BadRequestError", "stream", "stream"),
        ("responses", {}, 400, "Bad Request", "body.input", "string"),
        ("messages", {"messages": None}, 400, "Bad Request", "body.messages", "required"),
    ],
)
async def test_errors_have_vllms_form(
    sim: Sim, path: str, body: dict[str, Any], status: int, kind: str, param: str | None, phrase: str
) -> None:
    response = await sim.client.post(f"/v1/{path}", json=body)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    assert phrase in error["message"]
    assert sim.worker.engine.stats().generated_tokens == 0


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b"{bad", "body.1"),
        (b"", "body.0"),
        (b"[1]", "body"),
        (b'{"prompt":"\xff"}', "body.11"),
        (b"[" * 100_000, "body"),
        (b'{"n":' + b"9" * 5_000 + b"}", "body"),
    ],
    ids=["malformed", "empty", "not an object", "not utf-8", "nested too deeply", "a number too long"],
)
async def test_a_body_that_is_no_json_object(sim: Sim, content: bytes, param: str) -> None:
    response = await sim.client.post("/v1/completions", content=content, headers=JSON)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "Bad Request", param)


async def test_only_json_is_read(sim: Sim) -> None:
    for headers in ({}, {"content-type": "text/plain"}):
        response = await sim.client.post("/v1/completions", content=b'{"prompt":"a"}', headers=headers)
        assert response.status_code == 400
        assert "application/json" in response.json()["error"]["message"]
    charset = {"content-type": "application/json; charset=utf-8"}
    assert (await sim.client.post("/v1/completions", content=b'{"prompt":"a"}', headers=charset)).is_success


async def test_a_full_queue_is_503_without_retry_after() -> None:
    async with running(max_num_queued_reqs=2) as sim:
        await sim.fault("freeze")
        async with sim.client.stream("POST", "/v1/completions", json={"prompt": "a", "stream": True}):
            await sim.until("waiting", 1)
            response = await sim.complete(n=2)
            assert response.status_code == 503
            assert response.json()["error"]["type"] == "Service Unavailable"
            assert "retry-after" not in response.headers
            label = f'vllm:admission_rejections_total{{model_name="{MODEL}",reason="max_num_queued_reqs"}}'
            assert await sim.metric(label) == 1
            await sim.client.delete("/sim/faults")
        assert (await sim.complete()).is_success


async def test_a_priority_is_taken_and_recorded(sim: Sim) -> None:
    assert (await sim.complete(priority=-3)).is_success
    (record,) = (await sim.client.get("/sim/state/requests", params={"limit": 1})).json()["requests"]
    assert record["priority"] == -3


async def test_tokenize_counts_as_usage_does(sim: Sim) -> None:
    prompt = "How many tokens are in this?"
    counted = (await sim.client.post("/tokenize", json={"prompt": prompt})).json()
    assert counted["count"] == len(counted["tokens"]) == -(-len(prompt) // 4)
    assert counted["max_model_len"] == 16_384
    assert (await sim.complete(prompt)).json()["usage"]["prompt_tokens"] == counted["count"]
    messages = [{"role": "user", "content": prompt}]
    counted = (await sim.client.post("/tokenize", json={"messages": messages})).json()
    assert (await sim.chat(prompt)).json()["usage"]["prompt_tokens"] == counted["count"]
    assert (await sim.client.post("/tokenize", json={})).status_code == 400


async def test_it_reports_the_prompts_that_it_has_finished(sim: Sim) -> None:
    used = [(await sim.complete(prompt, max_tokens=2)).json()["usage"]["prompt_tokens"] for prompt in ("a", "b" * 400)]
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    assert await sim.metric(f"vllm:request_prompt_tokens_count{labels}") == 2
    assert await sim.metric(f"vllm:request_prompt_tokens_sum{labels}") == sum(used)
    assert await sim.metric(f"vllm:request_generation_tokens_sum{labels}") == 2 * 2


async def test_metrics_have_vllms_names_and_labels(sim: Sim) -> None:
    await sim.complete("count me", max_tokens=4)
    lines = [line for line in (await sim.client.get("/metrics")).text.splitlines() if line.startswith("vllm:")]
    series = {line.rpartition(" ")[0] for line in lines}
    labels = f'engine="0",model_name="{MODEL}"'
    for name in WITH_ENGINE:
        assert f"vllm:{name}{{{labels}}}" in series
    for name, (label, values) in WITH_LABEL.items():
        found = {line for line in series if line.startswith(f"vllm:{name}{{")}
        expected = {"".join(sorted(f"vllm:{name}{{{labels},{label}={json.dumps(value)}}}")) for value in values}
        assert {"".join(sorted(line)) for line in found} == expected
    for reason in ("max_num_queued_reqs", "max_num_queued_tokens"):
        assert f'vllm:admission_rejections_total{{model_name="{MODEL}",reason="{reason}"}}' in series
    assert any(
        line.startswith("vllm:cache_config_info{")
        and 'num_gpu_blocks="4096"' in line
        and 'block_size="16"' in line
        and 'kv_cache_size_tokens="65536"' in line
        for line in series
    )
    assert f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.001",model_name="{MODEL}"}}' in series


async def test_metrics_count_what_happened(sim: Sim) -> None:
    await sim.complete("count me", max_tokens=4)
    await sim.complete("and me again", max_tokens=6)
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    assert await sim.metric(f"vllm:generation_tokens_total{labels}") == 10
    assert await sim.metric(f"vllm:prompt_tokens_total{labels}") == 2 + 3
    assert await sim.metric(f"vllm:time_to_first_token_seconds_count{labels}") == 2
    assert await sim.metric(f"vllm:inter_token_latency_seconds_count{labels}") == 3 + 5
    assert await sim.metric(f"vllm:e2e_request_latency_seconds_count{labels}") == 2
    assert await sim.metric(f"vllm:request_generation_tokens_sum{labels}") == 10
    length = f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="{MODEL}"}}'
    assert await sim.metric(length) == 2
    assert await sim.metric(f"vllm:num_requests_running{labels}") == 0
    assert await sim.metric(f"vllm:kv_cache_usage_perc{labels}") == 0


async def test_a_repeated_prefix_is_a_hit(sim: Sim) -> None:
    prompt = "prefix " * 100
    await sim.complete(prompt, max_tokens=1)
    await sim.complete(prompt, max_tokens=1)
    labels = f'{{engine="0",model_name="{MODEL}"}}'
    # 175 tokens are 10 full blocks of 16.
    assert await sim.metric(f"vllm:prefix_cache_hits_total{labels}") == 160
    assert await sim.metric(f"vllm:prefix_cache_queries_total{labels}") == 350
    assert (await sim.client.delete("/sim/prefix-cache")).is_success
    await sim.complete(prompt, max_tokens=1)
    assert await sim.metric(f"vllm:prefix_cache_hits_total{labels}") == 160


async def test_a_prompt_of_a_mebibyte_arrives_whole() -> None:
    prompt = "0123456789abcdef" * 65_536
    async with running(profile="small", speed=50.0) as sim:
        body = (await sim.complete(prompt, max_tokens=3)).json()
        assert body["choices"][0]["text"].startswith(start_for_prompt(prompt))
        assert body["usage"]["prompt_tokens"] == 262_144


async def test_load_reports_on_request(sim: Sim) -> None:
    async def report(wanted: str, **fields: Any) -> str | None:
        response = await sim.client.post(
            "/v1/completions", json={"prompt": "a", **fields}, headers={"endpoint-load-metrics-format": wanted}
        )
        return response.headers.get("endpoint-load-metrics")

    text = "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0"
    assert await report("TEXT") == text
    kind, _, value = (await report("JSON") or "").partition(" ")
    gauges = {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}
    assert (kind, json.loads(value)) == ("JSON", {"named_metrics": gauges})
    assert await report("BIN") is None
    assert await report("TEXT", stream=True) is None


@pytest.mark.parametrize("given", ["2", 2.0, " +2 ", "2.00", "0_2"])
async def test_numbers_may_be_text_or_a_fraction_of_zeros(sim: Sim, given: Any) -> None:
    answer = await sim.client.post("/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": given})
    assert answer.json()["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    ("given", "streams"), [("true", True), ("ON", True), (1, True), (1.0, True), ("no", False), (0, False)]
)
async def test_truth_values_may_be_words(sim: Sim, given: Any, streams: bool) -> None:
    body = {"model": MODEL, "prompt": "a", "max_tokens": 1, "stream": given}
    answer = await sim.client.post("/v1/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream" if streams else "application/json")


@pytest.mark.parametrize("given", ["", "0x2", "2e0", "2.5", "2.", "_2", "2__0", "\u0662", "1" * 100, [2]])
async def test_what_is_no_number_is_refused(sim: Sim, given: Any) -> None:
    answer = await sim.client.post("/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "body.max_tokens")


async def test_responses_and_messages(sim: Sim) -> None:
    response = (await sim.client.post("/v1/responses", json={"model": MODEL, "input": "hi"})).json()
    start = reply_start([{"role": "user", "content": "hi"}])
    assert response["output"][0]["content"][0]["text"].startswith(start)
    assert (response["status"], response["incomplete_details"]) == ("completed", None)
    cut = {"model": MODEL, "input": "hi", "max_output_tokens": 2}
    response = (await sim.client.post("/v1/responses", json=cut)).json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (response["max_output_tokens"], response["usage"]["output_tokens"]) == (2, 2)
    message = {"model": MODEL, "max_tokens": 5, "system": "be brief", "messages": [{"role": "user", "content": "hi"}]}
    body = (await sim.client.post("/v1/messages", json=message)).json()
    both = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert body["content"][0]["text"].startswith(reply_start(both))
    assert (body["type"], body["stop_reason"], body["usage"]["output_tokens"]) == ("message", "max_tokens", 5)


async def test_requests_are_recorded_as_they_came(sim: Sim) -> None:
    body = b'{ "model" : "tiny-qwen",\n"prompt":"caf\\u00e9", "big": 123456789012345678901234567890, "max_tokens":1}'
    headers = {**JSON, "X-Request-Id": "rec-1", "X-Recursant-Agent": "chat-web"}
    assert (await sim.client.post("/v1/completions", content=body, headers=headers)).is_success
    await sim.complete("another")
    newest, record = (await sim.client.get("/sim/state/requests?limit=2")).json()["requests"]
    assert newest["id"] != "rec-1"
    assert (record["id"], record["response_id"]) == ("rec-1", "cmpl-rec-1")
    assert ["x-recursant-agent", "chat-web"] in record["headers"]
    assert record["body_sha256"] == hashlib.sha256(body).hexdigest()
    assert record["body_bytes"] == len(body)
    assert (record["model"], record["path"], record["outcome"]) == (MODEL, "/v1/completions", "finished")
    for request_id in ("rec-1", "cmpl-rec-1"):
        assert (await sim.client.get(f"/sim/state/requests/{request_id}/body")).content == body
    assert (await sim.client.get("/sim/state/requests/unknown/body")).status_code == 404
    assert (await sim.client.get("/sim/state/requests?limit=x")).status_code == 400


async def test_the_openai_sdk(sim: Sim) -> None:
    async with openai.AsyncOpenAI(base_url=f"{sim.service.url}/v1", api_key="none", timeout=PATIENCE_S) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        messages: Any = [{"role": "user", "content": "hello"}]
        start = reply_start(messages)
        chat = await client.chat.completions.create(model=MODEL, messages=messages)
        assert (chat.choices[0].message.content or "").startswith(start)
        stream = await client.chat.completions.create(
            model=MODEL, messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == chat.choices[0].message.content
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == len(text.split())
        completion = await client.completions.create(model=MODEL, prompt="hello", max_tokens=3)
        assert completion.choices[0].text.startswith(start_for_prompt("hello"))
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.completions.create(model="nope", prompt="hello")
        with pytest.raises(openai.BadRequestError, match="does not support Embeddings API"):
            await client.embeddings.create(model=MODEL, input="hello")
        response = await client.responses.create(model=MODEL, input="hello")
        assert response.output_text.startswith(start)
