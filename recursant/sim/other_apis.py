"""`/v1/responses` and `/v1/messages`, as far as a gateway's tests need them: whole answers, no streams."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from recursant.sim.errors import bad_request, invalid_body
from recursant.sim.formats import ChoiceView, ResponseFormat
from recursant.sim.protocol import GenerationSpec, ServedModels, parse_chat

# What vLLM's response has and does not fill, or only with what the request said.
_RESPONSE_NULLS: Final = (
    *("instructions", "metadata", "max_tool_calls", "previous_response_id", "prompt", "reasoning", "text", "user"),
    *("top_logprobs", "kv_transfer_params", "ec_transfer_params", "input_messages", "output_messages"),
)


def parse_response(body: Mapping[str, Any], served: ServedModels) -> GenerationSpec:
    """A `/v1/responses` body: its instructions and input are read as a chat.

    Raises:
        ApiError: as for a chat, and for a stream.
    """
    _refuse_stream(body, "/v1/responses")
    given = body.get("input")
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise invalid_body("{'loc': ('body', 'input'), 'msg': 'Input should be a valid string'}", "body.input")
    instructions = body.get("instructions")
    messages = [{"role": "system", "content": instructions}, *given] if instructions else given
    return parse_chat(
        {"model": body.get("model"), "messages": messages, "max_tokens": body.get("max_output_tokens")}, served
    )


def parse_message(body: Mapping[str, Any], served: ServedModels) -> GenerationSpec:
    """A `/v1/messages` body: its system prompt and messages are read as a chat.

    Raises:
        ApiError: as for a chat, and for a stream.
    """
    _refuse_stream(body, "/v1/messages")
    messages = body.get("messages")
    if body.get("system") and isinstance(messages, list):
        messages = [{"role": "system", "content": body["system"]}, *messages]
    return parse_chat(
        {
            "model": body.get("model"),
            "messages": messages,
            "max_tokens": body.get("max_tokens"),
            "stop": body.get("stop_sequences"),
        },
        served,
    )


def _refuse_stream(body: Mapping[str, Any], path: str) -> None:
    if body.get("stream"):
        raise bad_request(f"The simulated worker does not stream {path}.", "stream")


class ResponsesFormat(ResponseFormat):
    """`/v1/responses`."""

    prefix = "resp_"

    def whole(
        self, choices: Sequence[tuple[ChoiceView, str]], prompt_tokens: int, completion_tokens: int
    ) -> dict[str, Any]:
        """See ResponseFormat."""
        cut = any(choice.finish_reason == "length" for choice, _ in choices)
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": self.model,
            "object": "response",
            "output": [
                {
                    "id": f"msg_{self.id.removeprefix(self.prefix)}",
                    "content": [{"annotations": [], "text": text, "type": "output_text", "logprobs": None}],
                    "role": "assistant",
                    "status": "completed",
                    "type": "message",
                    "phase": None,
                }
                for _, text in choices
            ],
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0,
            "background": False,
            "max_output_tokens": completion_tokens,
            "service_tier": "auto",
            "status": "incomplete" if cut else "completed",
            "truncation": "disabled",
            "usage": {
                "input_tokens": prompt_tokens,
                "input_tokens_details": {
                    "cached_tokens": 0,
                    "cache_write_tokens": 0,
                    "input_tokens_per_turn": [],
                    "cached_tokens_per_turn": [],
                },
                "output_tokens": completion_tokens,
                "output_tokens_details": {
                    "reasoning_tokens": 0,
                    "tool_output_tokens": 0,
                    "output_tokens_per_turn": [],
                    "tool_output_tokens_per_turn": [],
                },
                "total_tokens": prompt_tokens + completion_tokens,
            },
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            **dict.fromkeys(_RESPONSE_NULLS),
        }


class MessagesFormat(ResponseFormat):
    """`/v1/messages`, Anthropic's form."""

    prefix = "msg_"

    def whole(
        self, choices: Sequence[tuple[ChoiceView, str]], prompt_tokens: int, completion_tokens: int
    ) -> dict[str, Any]:
        """See ResponseFormat."""
        choice, text = choices[0]
        reason = "max_tokens" if choice.finish_reason == "length" else "end_turn"
        body = {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [{"type": "text", "text": text}],
            "stop_reason": "stop_sequence" if choice.stop_reason else reason,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": completion_tokens},
        }
        if choice.stop_reason:
            body["stop_sequence"] = choice.stop_reason
        return body
