"""From a request body to what is to be generated: vLLM's checks, in vLLM's order, with vLLM's errors.

Unknown fields are ignored, as vLLM ignores them.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from recursant.sim import text
from recursant.sim.errors import bad_request, invalid_body, unknown_model
from recursant.sim.fields import flag, integer, wrong_type
from recursant.sim.reply import StopRule

COMPLETION_DEFAULT_TOKENS: Final = 16
# vLLM has no such bound by default; without one a single request could fill the simulator's memory.
MAX_CHOICES: Final = 128


@dataclass(frozen=True, slots=True)
class ServedModels:
    """What this worker serves: names, and the longest prompt and output together, in tokens."""

    names: tuple[str, ...]
    max_model_len: int


@dataclass(frozen=True, slots=True)
class PromptSpec:
    """One prompt.

    Attributes:
        digest, length: what its reply begins with.
        data: what the model reads.
        tokens: of it.
        rule: when its replies end.
    """

    digest: str
    length: int
    data: bytes
    tokens: int
    rule: StopRule


@dataclass(frozen=True, slots=True)
class GenerationSpec:
    """What one HTTP request asks for: `n` choices for every prompt."""

    model: str
    prompts: tuple[PromptSpec, ...]
    n: int
    seed: int
    priority: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    salt: str | None

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(prompt.tokens for prompt in self.prompts)


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        ApiError: it is none.
    """
    try:
        value = json.loads(body)
    except json.JSONDecodeError as error:
        raise invalid_body(
            f"{{'type': 'json_invalid', 'loc': ('body', {error.pos}), 'msg': 'JSON decode error', "
            f"'ctx': {{'error': '{error.msg}'}}}}",
            f"body.{error.pos}",
        ) from None
    except UnicodeDecodeError as error:
        raise invalid_body("{'type': 'json_invalid', 'msg': 'not UTF-8'}", f"body.{error.start}") from None
    except (ValueError, RecursionError):
        # A number too long to read, or too many brackets.
        raise invalid_body("{'type': 'json_invalid', 'msg': 'too deep or too long'}", "body") from None
    if not isinstance(value, dict):
        raise invalid_body("{'type': 'model_attributes_type', 'msg': 'Input should be a valid dictionary'}", "body")
    return value


def parse_completion(body: Mapping[str, Any], served: ServedModels) -> GenerationSpec:
    """A `/v1/completions` body.

    Raises:
        ApiError: as vLLM answers.
    """
    common = _Common.parse(body)
    prompts = _prompts(body.get("prompt"))
    model = check_model(body, served)
    max_tokens = integer(body, "max_tokens")
    limit = COMPLETION_DEFAULT_TOKENS if max_tokens is None else max_tokens
    specs = []
    for prompt in prompts:
        data = text.prompt_bytes(prompt)
        tokens = text.count_tokens(data)
        rule = common.rule(_token_limit(limit, tokens, served))
        specs.append(PromptSpec(text.digest_of_prompt(prompt), text.prompt_length(prompt), data, tokens, rule))
    return common.spec(model, tuple(specs))


def parse_chat(body: Mapping[str, Any], served: ServedModels) -> GenerationSpec:
    """A `/v1/chat/completions` body.

    Raises:
        ApiError: as vLLM answers.
    """
    common = _Common.parse(body)
    messages = checked_messages(body.get("messages"))
    model = check_model(body, served)
    max_tokens = integer(body, "max_completion_tokens")
    if max_tokens is None:
        max_tokens = integer(body, "max_tokens")
    data = text.render_chat(messages, body.get("tools"))
    tokens = text.count_tokens(data)
    rule = common.rule(_token_limit(max_tokens, tokens, served))
    prompt = PromptSpec(text.digest_of_messages(messages), text.messages_length(messages), data, tokens, rule)
    return common.spec(model, (prompt,))


def check_model(body: Mapping[str, Any], served: ServedModels) -> str:
    """The model that a body asks for; the first one where it names none.

    Raises:
        ApiError: it is not served here.
    """
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise wrong_type("model", "string")
    if not model:
        return served.names[0]
    if model not in served.names:
        raise unknown_model(model, served.names)
    return model


def checked_messages(value: Any) -> Sequence[Mapping[str, Any]]:
    """The messages of a chat.

    Raises:
        ApiError: they are no list of messages.
    """
    if value is None:
        raise invalid_body("{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required'}", "body.messages")
    if not isinstance(value, list):
        raise wrong_type("messages", "list")
    if not value:
        raise bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    for index, message in enumerate(value):
        if not isinstance(message, dict):
            raise wrong_type(f"messages.{index}", "dictionary")
        if not isinstance(message.get("role"), str):
            raise invalid_body("{'type': 'missing', 'msg': 'Field required'}", f"body.messages.{index}.role")
    return value


@dataclass(frozen=True, slots=True)
class _Common:
    """What completions and chats have in common."""

    n: int
    seed: int
    priority: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    include_stop: bool
    salt: str | None

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> "_Common":
        stream = flag(body, "stream")
        options = body.get("stream_options")
        if options is None:
            options = {}
        elif not isinstance(options, dict):
            raise wrong_type("stream_options", "dictionary")
        elif not stream:
            raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
        n = integer(body, "n")
        if n is not None and n < 1:
            raise bad_request(f"n must be at least 1, got {n}.")
        if n is not None and n > MAX_CHOICES:
            raise bad_request(f"n must be at most {MAX_CHOICES}, got {n}.", "n")
        min_tokens = integer(body, "min_tokens") or 0
        if min_tokens < 0:
            raise bad_request(f"min_tokens must be greater than or equal to 0, got {min_tokens}.", "min_tokens")
        salt = body.get("cache_salt")
        return cls(
            n=1 if n is None else n,
            seed=integer(body, "seed") or 0,
            priority=integer(body, "priority") or 0,
            stream=stream,
            include_usage=flag(options, "include_usage"),
            continuous_usage=flag(options, "continuous_usage_stats"),
            min_tokens=min_tokens,
            ignore_eos=flag(body, "ignore_eos"),
            stop=_stop(body.get("stop")),
            include_stop=flag(body, "include_stop_str_in_output"),
            salt=salt if isinstance(salt, str) else None,
        )

    def rule(self, max_tokens: int) -> StopRule:
        if self.min_tokens > max_tokens:
            raise bad_request(
                f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {self.min_tokens}."
            )
        return StopRule(max_tokens, self.min_tokens, self.ignore_eos, self.stop, self.include_stop)

    def spec(self, model: str, prompts: tuple[PromptSpec, ...]) -> GenerationSpec:
        if len(prompts) * self.n > MAX_CHOICES:
            raise bad_request(f"at most {MAX_CHOICES} choices in one request", "prompt")
        return GenerationSpec(
            model=model,
            prompts=prompts,
            n=self.n,
            seed=self.seed,
            priority=self.priority,
            stream=self.stream,
            include_usage=self.include_usage,
            continuous_usage=self.include_usage and self.continuous_usage,
            salt=self.salt,
        )


def _token_limit(max_tokens: int | None, prompt_tokens: int, served: ServedModels) -> int:
    """How many tokens may be generated."""
    most = served.max_model_len
    if max_tokens is not None and max_tokens < 1:
        raise bad_request(f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens")
    if max_tokens is not None and max_tokens > most:
        raise bad_request(
            f"max_tokens={max_tokens} cannot be greater than max_model_len={most}. Please request fewer output tokens.",
            "max_tokens",
        )
    if prompt_tokens >= most:
        raise bad_request(
            f"This model's maximum context length is {most} tokens. However, your prompt contains {prompt_tokens} "
            "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the "
            "input prompt.",
            "input_tokens",
        )
    # More than there is room for is cut silently.
    return most - prompt_tokens if max_tokens is None else min(max_tokens, most - prompt_tokens)


def _prompts(value: Any) -> list[text.Prompt]:
    if value is None or value == "":
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(value, str):
        prompts: list[text.Prompt] = [value]
    elif _is_ids(value):
        prompts = [value]
    elif isinstance(value, list) and all(isinstance(item, str) or _is_ids(item) for item in value):
        prompts = value
    else:
        raise wrong_type("prompt", "string")
    if not prompts:
        raise bad_request("You must pass at least one prompt")
    if not all(prompts):
        raise bad_request("The decoder prompt cannot be empty", "prompt")
    return prompts


def _is_ids(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value)
    )


def _stop(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise wrong_type("stop", "string")
    if not all(strings):
        raise bad_request("stop cannot contain an empty string.")
    return tuple(strings)
