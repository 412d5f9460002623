"""The `openai` client: models, chats, streams, completions, responses, errors. Prints what it saw as JSON."""

import json
import sys

import openai

url, model = sys.argv[1:]
headers = {"X-Agent-ID": "any"}
client = openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, default_headers=headers)
messages = [{"role": "user", "content": "The queue holds"}]
chat = client.chat.completions.create(model=model, messages=messages, max_tokens=8)
chunks = list(
    client.chat.completions.create(
        model=model, messages=messages, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
)
completion = client.completions.create(model=model, prompt="A worker", max_tokens=8, extra_body={"ignore_eos": True})
response = client.responses.create(model=model, input="A worker", max_output_tokens=8)
try:
    client.chat.completions.create(model="none-such", messages=messages)
except openai.NotFoundError as error:
    missing = error.code
try:
    client.completions.create(model=model, prompt="A worker", max_tokens=0)
except openai.BadRequestError as error:
    refused = error.message
print(
    json.dumps(
        {
            "models": [card.id for card in client.models.list()],
            "chat": chat.choices[0].message.content,
            "chat_tokens": chat.usage.completion_tokens,
            "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
            "streamed_tokens": chunks[-1].usage.completion_tokens,
            "completion": completion.choices[0].text,
            "response": response.output_text,
            "missing": missing,
            "refused": refused,
        }
    )
)
