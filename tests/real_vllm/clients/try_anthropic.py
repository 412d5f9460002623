"""The `anthropic` client on /v1/messages: an answer, a stream, an error. Prints what it saw as JSON."""

import json
import sys

import anthropic

url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0, default_headers={"X-Agent-ID": "any"})
request = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "The queue holds"}]}
answer = client.messages.create(**request, system="A worker")
with client.messages.stream(**request) as stream:
    streamed = "".join(stream.text_stream)
    last = stream.get_final_message()
try:
    client.messages.create(**{**request, "model": "none-such"})
except anthropic.NotFoundError as error:
    missing = error.status_code
print(
    json.dumps(
        {
            "chat": answer.content[0].text,
            "chat_tokens": answer.usage.output_tokens,
            "stopped": answer.stop_reason,
            "streamed": streamed,
            "streamed_tokens": last.usage.output_tokens,
            "missing": missing,
        }
    )
)
