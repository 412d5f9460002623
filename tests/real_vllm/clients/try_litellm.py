"""`litellm` as it is pointed at a vLLM: an answer, a stream, an error. Prints what it saw as JSON."""

import json
import sys

import litellm

url, model = sys.argv[1:]
request = {
    "model": f"hosted_vllm/{model}",
    "api_base": f"{url}/v1",
    "api_key": "unused",
    "messages": [{"role": "user", "content": "The queue holds"}],
    "max_tokens": 8,
    "temperature": 0,
    "num_retries": 0,
    "extra_headers": {"X-Agent-ID": "any"},
}
answer = litellm.completion(**request)
chunks = list(litellm.completion(**request, stream=True, stream_options={"include_usage": True}))
try:
    litellm.completion(**{**request, "model": "hosted_vllm/none-such"})
except litellm.NotFoundError as error:
    missing = error.status_code
usages = [usage.completion_tokens for chunk in chunks if (usage := getattr(chunk, "usage", None))]
print(
    json.dumps(
        {
            "chat": answer.choices[0].message.content,
            "chat_tokens": answer.usage.completion_tokens,
            "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
            "streamed_tokens": usages[-1],
            "missing": missing,
        }
    )
)
