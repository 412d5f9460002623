"""What the gateway believes of lengths that it cannot count: learnt from what the workers count, and shown."""

import json

import pytest
from harness.programs import recursant
from harness.stack import MakeStack, Stack
from harness.waiting import wait_until

from recursant.admission.calibration import MIN_REQUESTS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

QWEN = "Qwen/Qwen2.5-7B-Instruct"
CONFIG = """
agents:
  - {agent_id: chat-web, model_family: qwen}
probes: {enabled: false}
"""
# Two bytes in a JSON body each; the simulated tokenizer makes a token of four.
QUOTES = '"' * 4_000


def bytes_per_token(stack: Stack) -> float:
    return stack.service_metrics("extproc").value("recursant_bytes_per_token", family="qwen")


def test_the_length_of_prompts_is_learnt_from_what_workers_count(make_stack: MakeStack) -> None:
    stack = make_stack(workers=1, config=CONFIG, args=["--worker-models", QWEN])

    def explained() -> dict[str, object]:
        done = recursant(
            "explain", "--agent", "chat-web", "--tokens", "500", "-o", "json", "--run-dir", str(stack.run_dir)
        )
        request: dict[str, object] = json.loads(done.out)["request"]
        return request

    before = explained()
    assert (before["bytes_per_token"], before["estimate_error"]) == (4.0, None)
    assert bytes_per_token(stack) == 0
    for _ in range(MIN_REQUESTS):
        answer = stack.chat(QUOTES, max_tokens=1)
        assert answer.status_code == 200
    true = len(answer.request.content) / answer.json()["usage"]["prompt_tokens"]
    assert true > 7
    wait_until(lambda: bytes_per_token(stack) > 0)
    assert bytes_per_token(stack) == pytest.approx(true, rel=0.01)
    metrics = stack.service_metrics("extproc")
    # Four were assumed: the estimate was twice the truth.
    assert metrics.value("recursant_prompt_estimate_error_ratio", family="qwen") == pytest.approx(
        true / 4 - 1, rel=0.01
    )
    assert metrics.value("recursant_prompt_estimate_windows_total", family="qwen") == 1

    after = explained()
    assert after["prompt_tokens"] == 500
    assert after["bytes_per_token"] == pytest.approx(true, rel=0.01)
    # With what was learnt the error of the next window is small, and the mean falls.
    for _ in range(MIN_REQUESTS):
        assert stack.chat(QUOTES, max_tokens=1).status_code == 200
    wait_until(
        lambda: stack.service_metrics("extproc").value("recursant_prompt_estimate_windows_total", family="qwen") == 2
    )
    error = stack.service_metrics("extproc").value("recursant_prompt_estimate_error_ratio", family="qwen")
    assert error == pytest.approx(0.8 * (true / 4 - 1), rel=0.02)
