"""vLLM's response bodies: whole ones, and the chunks of a stream.

A chunk is made for every token of every stream, so what does not change in it is written once for each request.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

DONE: Final = b"data: [DONE]\n\n"


class ChoiceView(Protocol):
    """What a body says of a choice besides its text."""

    @property
    def index(self) -> int:
        """Its number."""
        ...

    @property
    def finish_reason(self) -> str:
        """Why it ended."""
        ...

    @property
    def stop_reason(self) -> str | None:
        """The stop string that ended it."""
        ...


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """vLLM's usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def permission(name: str, created: int) -> dict[str, Any]:
    """What a model's card says of who may do what: everybody everything that vLLM lets them."""
    return {
        "id": name,
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }


def event(value: Any) -> bytes:
    """A server-sent event."""
    return b"data: " + compact(value) + b"\n\n"


def compact(value: Any) -> bytes:
    """JSON without white space, as vLLM writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


class ResponseFormat(ABC):
    """The body of one request's response."""

    prefix = ""

    def __init__(self, base_id: str, model: str, created: int, fingerprint: str) -> None:
        self.id = f"{self.prefix}{base_id}"
        self.model = model
        self.created = created
        self.fingerprint = fingerprint

    @abstractmethod
    def whole(
        self, choices: Sequence[tuple[ChoiceView, str]], prompt_tokens: int, completion_tokens: int
    ) -> dict[str, Any]:
        """The body of a response that is not streamed: every choice with its text."""


class StreamFormat(ResponseFormat):
    """The bodies of a response that may be streamed."""

    whole_object = ""
    chunk_object = ""
    # What else a whole body has: empty unless asked for by parameters that are not modelled.
    whole_extras: Mapping[str, None] = MappingProxyType({})

    def __init__(self, base_id: str, model: str, created: int, fingerprint: str) -> None:
        super().__init__(base_id, model, created, fingerprint)
        envelope = {"id": self.id, "object": self.chunk_object, "created": created, "model": model}
        self._head = compact(envelope)[:-1].decode("utf-8", "surrogatepass")

    @abstractmethod
    def opening(self, choices: int, continuous: dict[str, Any] | None) -> bytes:
        """The chunks that come before the first text."""

    def chunk(
        self,
        choice: ChoiceView,
        text: str,
        *,
        ended: bool,
        continuous: dict[str, Any] | None,
        last: bool,
    ) -> bytes:
        """The chunk that brings more text of a choice, its end included where `ended`.

        `last` says that no usage chunk follows; vLLM then puts the fingerprint here.
        """
        body = self._choice(choice, json.dumps(text), ended=ended)
        tail = ""
        if last and ended:
            tail += f',"system_fingerprint":{json.dumps(self.fingerprint)}'
        if continuous is not None:
            tail += f',"usage":{compact(continuous).decode()}'
        return f'data: {self._head},"choices":[{body}]{tail}}}\n\n'.encode("utf-8", "surrogatepass")

    def usage_chunk(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        """The chunk without choices that ends a stream with `include_usage`."""
        return event(
            {
                "id": self.id,
                "object": self.chunk_object,
                "created": self.created,
                "model": self.model,
                "choices": [],
                "usage": usage(prompt_tokens, completion_tokens),
                "system_fingerprint": self.fingerprint,
            }
        )

    def whole(
        self, choices: Sequence[tuple[ChoiceView, str]], prompt_tokens: int, completion_tokens: int
    ) -> dict[str, Any]:
        """See ResponseFormat."""
        return {
            "id": self.id,
            "object": self.whole_object,
            "created": self.created,
            "model": self.model,
            "choices": [self._whole_choice(choice, text) for choice, text in choices],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": {
                **usage(prompt_tokens, completion_tokens),
                "prompt_tokens_details": None,
                "completion_tokens_details": None,
            },
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
            **self.whole_extras,
        }

    @abstractmethod
    def _choice(self, choice: ChoiceView, quoted: str, *, ended: bool) -> str:
        """One choice of a chunk, as JSON."""

    @abstractmethod
    def _whole_choice(self, choice: ChoiceView, text: str) -> dict[str, Any]:
        """One choice of a whole response."""


class CompletionFormat(StreamFormat):
    """`/v1/completions`."""

    prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, choices: int, continuous: dict[str, Any] | None) -> bytes:
        """Nothing: the first chunk brings text already."""
        return b""

    def _choice(self, choice: ChoiceView, quoted: str, *, ended: bool) -> str:
        reason = json.dumps(choice.finish_reason) if ended else "null"
        stop = json.dumps(choice.stop_reason) if ended else "null"
        return (
            f'{{"index":{choice.index},"text":{quoted},"logprobs":null,"finish_reason":{reason},"stop_reason":{stop},'
            '"prompt_token_ids":null,"token_ids":null}'
        )

    def _whole_choice(self, choice: ChoiceView, text: str) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": text,
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }


class ChatFormat(StreamFormat):
    """`/v1/chat/completions`."""

    prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    whole_extras = MappingProxyType({"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None})

    def opening(self, choices: int, continuous: dict[str, Any] | None) -> bytes:
        """The role, for every choice."""
        tail = "" if continuous is None else f',"usage":{compact(continuous).decode()}'
        chunks = [
            f'data: {self._head},"choices":[{{"index":{index},"delta":{{"role":"assistant","content":""}},'
            f'"logprobs":null,"finish_reason":null}}],"prompt_token_ids":null,"prompt_text":null{tail}}}\n\n'
            for index in range(choices)
        ]
        return "".join(chunks).encode("utf-8", "surrogatepass")

    def _choice(self, choice: ChoiceView, quoted: str, *, ended: bool) -> str:
        delta = f'{{"index":{choice.index},"delta":{{"content":{quoted}}},"logprobs":null,'
        if not ended:
            return delta + '"finish_reason":null,"token_ids":null}'
        reason, stop = json.dumps(choice.finish_reason), json.dumps(choice.stop_reason)
        return delta + f'"finish_reason":{reason},"stop_reason":{stop},"token_ids":null}}'

    def _whole_choice(self, choice: ChoiceView, text: str) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": {
                "role": "assistant",
                "content": text,
                "refusal": None,
                "annotations": None,
                "audio": None,
                "function_call": None,
                "reasoning": None,
            },
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": None,
            "routed_experts": None,
        }
