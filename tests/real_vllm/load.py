"""Requests in the background, and when their tokens came."""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
from vllm_rig import REQUEST_S


@dataclass
class Call:
    """One request. Times are monotonic seconds.

    Attributes:
        status: of the answer; 0 where none came.
        worker: who answered, as the gateway says.
        first, last: when its first and its last token came.
        tokens: by the usage at its end.
        error: of a broken connection, or of an event within the stream.
        body: of an answer that is no stream; its tokens came all at once.
    """

    label: str
    status: int = 0
    worker: str = ""
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    error: str = ""
    body: dict[str, Any] = field(default_factory=dict)


class Load:
    """Completions, each on a thread, streamed unless they say otherwise; the end of the block cuts those that run."""

    def __init__(self, base_url: str, path: str = "/v1/completions") -> None:
        self._url = base_url + path
        self.calls: list[Call] = []
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()

    def start(self, label: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Call:
        """Send one more."""
        call = Call(label)
        self.calls.append(call)
        sent = {**body} if "stream" in body else {**body, "stream": True, "stream_options": {"include_usage": True}}
        arguments = (call, sent, dict(headers or {}))
        self._threads.append(threading.Thread(target=self._run, args=arguments, daemon=True))
        self._threads[-1].start()
        return call

    @property
    def over(self) -> bool:
        """Have all of them ended?"""
        return not any(thread.is_alive() for thread in self._threads)

    def wait(self) -> list[Call]:
        """Wait until all have ended."""
        for thread in self._threads:
            thread.join(REQUEST_S)
            assert not thread.is_alive(), "a request does not end"
        return self.calls

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self.wait()

    def _run(self, call: Call, body: dict[str, Any], headers: dict[str, str]) -> None:
        try:
            with (
                httpx.Client(timeout=REQUEST_S, trust_env=False) as client,
                client.stream("POST", self._url, json=body, headers=headers) as answer,
            ):
                call.status = answer.status_code
                call.worker = answer.headers.get("x-recursant-worker", "")
                if answer.status_code != httpx.codes.OK or not body["stream"]:
                    call.body = json.loads(answer.read())
                    call.first = call.last = time.monotonic()
                    call.tokens = call.body.get("usage", {}).get("completion_tokens", 0)
                    return
                for line in answer.iter_lines():
                    if self._stop.is_set():
                        return
                    self._event(call, line)
        except httpx.HTTPError as error:
            call.error = str(error) or type(error).__name__

    @staticmethod
    def _event(call: Call, line: str) -> None:
        data = line.removeprefix("data: ")
        if not line or data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            call.error = str(event["error"]["message"])
        elif event["choices"]:
            now = time.monotonic()
            call.first = call.first or now
            call.last = now
        elif event.get("usage"):
            call.tokens = event["usage"]["completion_tokens"]
