"""`langchain-openai`: an answer, a stream, usage. Prints what it saw as JSON."""

import json
import sys

from langchain_openai import ChatOpenAI

url, model = sys.argv[1:]
chat = ChatOpenAI(
    base_url=f"{url}/v1",
    api_key="unused",
    model=model,
    max_tokens=8,
    max_retries=0,
    temperature=0,
    default_headers={"X-Agent-ID": "any"},
    stream_usage=True,
)
answer = chat.invoke("The queue holds")
chunks = list(chat.stream("The queue holds"))
print(
    json.dumps(
        {
            "chat": answer.content,
            "chat_tokens": answer.usage_metadata["output_tokens"],
            "streamed": "".join(chunk.content for chunk in chunks),
            "streamed_tokens": sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata),
        }
    )
)
