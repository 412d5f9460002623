"""A client of the gateway: plain HTTP, each header of an answer once."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from datapath.background import PATIENCE_S


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def worker(self) -> str | None:
        return self.headers.get("x-worker")


def read_answer(connection: socket.socket) -> Answer:
    """The answer on a raw connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    headers = {key.lower(): value for key, value in response.getheaders()}
    return Answer(response.status, headers, response.read())


class Client:
    """Each request over a connection of its own.

    Attributes:
        port: where the gateway listens, on loopback.
    """

    def __init__(self, port: int) -> None:
        self.port = port

    def request(
        self,
        method: str,
        target: str,
        body: bytes | str | Iterable[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            chunked = body is not None and not isinstance(body, (bytes, str))
            connection.request(method, target, body=body, headers=dict(headers or {}), encode_chunked=chunked)
            response = connection.getresponse()
            found: dict[str, str] = {}
            for key, value in response.getheaders():
                assert key.lower() not in found, f"{key} comes twice"
                found[key.lower()] = value
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, target: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.request("GET", target, headers=headers)

    def post(self, target: str, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
        """POST JSON; a str or bytes goes as it is."""
        data = body if isinstance(body, (str, bytes)) else json.dumps(body)
        return self.request("POST", target, data, {"content-type": "application/json", **(headers or {})})

    def chat(self, headers: Mapping[str, str] | None = None, **fields: Any) -> Answer:
        return self.post("/v1/chat/completions", {"model": "auto", "messages": [], **fields}, headers)

    @contextlib.contextmanager
    def raw(self, *parts: bytes) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            for part in parts:
                connection.sendall(part)
            yield connection
