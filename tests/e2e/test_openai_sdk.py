"""The `openai` SDK, unchanged but for its base URL."""

from collections.abc import Iterator

import openai
import pytest
from harness.stack import Stack

pytestmark = pytest.mark.e2e

QWEN = "Qwen/Qwen2.5-7B-Instruct"


@pytest.fixture
def sdk(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{stack.endpoints.gateway}/v1",
        api_key="unused",
        max_retries=0,
        default_headers={"X-Agent-ID": "chat-web"},
    ) as client:
        yield client


def test_models(sdk: openai.OpenAI) -> None:
    names = [model.id for model in sdk.models.list()]
    assert QWEN in names
    assert "auto" in names
    assert sdk.models.retrieve(QWEN).id == QWEN
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("none-such")


def test_chat(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model="auto", messages=[{"role": "user", "content": "Hi"}], max_tokens=16)
    assert answer.model == QWEN
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16


def test_chat_streamed_with_usage(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        model="auto",
        messages=[{"role": "user", "content": "Hi"}],
        max_tokens=16,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_completions(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(model="auto", prompt="Once upon a time", max_tokens=8)
    assert (answer.model, bool(answer.choices[0].text)) == (QWEN, True)


def test_embeddings_are_refused_clearly(sdk: openai.OpenAI) -> None:
    with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as refused:
        sdk.embeddings.create(model="auto", input="text")
    assert refused.value.message


def test_errors_map_to_the_sdks_own(stack: Stack, sdk: openai.OpenAI) -> None:
    stack.wait_settled()
    with pytest.raises(openai.NotFoundError) as missing:
        sdk.with_options(default_headers={"X-Agent-ID": "none"}).chat.completions.create(
            model="none-such", messages=[{"role": "user", "content": "Hi"}]
        )
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.PermissionDeniedError):
        sdk.chat.completions.create(
            model="microsoft/Phi-3-mini-4k-instruct", messages=[{"role": "user", "content": "Hi"}]
        )
    with pytest.raises(openai.BadRequestError):
        sdk.chat.completions.create(
            model="auto", messages=[{"role": "user", "content": "Hi"}], extra_headers={"X-Agent-Meta": "{"}
        )
