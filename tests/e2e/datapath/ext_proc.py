"""The stand-in for extproc: it answers by a function that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as ext_proc_pb2_grpc

from recursant import names


@dataclass
class Verdict:
    """What the ext_proc stand-in answers to the request headers."""

    endpoints: str | None = None
    metadata: Mapping[str, str | float] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    remove: Sequence[str] = ()
    hold_s: float = 0.0
    ask_hold_s: float = 0.0
    ask_for_body: bool = False
    # (status, headers, body)
    immediate: tuple[int, Mapping[str, str], str] | None = None
    response_headers: Mapping[str, str] = field(default_factory=dict)


def listed(*endpoints: str) -> Verdict:
    """These workers, each to be tried in turn."""
    return Verdict(endpoints=",".join(endpoints), headers={"x-envoy-max-retries": str(len(endpoints) - 1)})


async def _serving(_request: bytes, _context: object) -> bytes:
    """HealthCheckResponse{status: SERVING}."""
    return b"\x08\x01"


# Envoy asks for it where there are several ext_proc processes.
HEALTHY = grpc.unary_unary_rpc_method_handler(_serving)


class ExtProc(ext_proc_pb2_grpc.ExternalProcessorServicer):
    """Answers as the contract says, by a function that the test sets."""

    def __init__(self) -> None:
        self.decide: Callable[[Mapping[str, str]], Verdict] = lambda _headers: Verdict()
        self.open = 0
        self.opened = 0
        self.seen: list[Any] = []
        self.bodies: list[bytes] = []

    def reset(self) -> None:
        self.decide = lambda _headers: Verdict()
        self.seen.clear()
        self.bodies.clear()
        self.opened = 0

    async def Process(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.open += 1
        self.opened += 1
        verdict = Verdict()
        try:
            async for request in requests:
                self.seen.append(request)
                match request.WhichOneof("request"):
                    case "request_headers":
                        headers = _headers(request.request_headers)
                        verdict = self.decide(headers)
                        if verdict.ask_hold_s:
                            wait = ext_proc_pb2.ProcessingResponse()
                            wait.override_message_timeout.FromMilliseconds(int(verdict.ask_hold_s * 1_000))
                            yield wait
                        if verdict.hold_s:
                            await asyncio.sleep(verdict.hold_s)
                        if verdict.ask_for_body:
                            ask = ext_proc_pb2.ProcessingResponse()
                            ask.request_headers.response.SetInParent()
                            ask.mode_override.request_header_mode = ProcessingMode.SEND
                            ask.mode_override.response_header_mode = ProcessingMode.SEND
                            ask.mode_override.request_body_mode = ProcessingMode.BUFFERED
                            ask.mode_override.response_trailer_mode = ProcessingMode.SEND
                            yield ask
                        else:
                            yield _verdict_answer("request_headers", verdict)
                    case "request_body":
                        self.bodies.append(request.request_body.body)
                        yield _verdict_answer("request_body", verdict)
                    case "response_headers":
                        answer = ext_proc_pb2.ProcessingResponse()
                        answer.response_headers.response.SetInParent()
                        _set(answer.response_headers.response.header_mutation, verdict.response_headers)
                        yield answer
                    case kind:
                        answer = ext_proc_pb2.ProcessingResponse()
                        getattr(answer, kind).SetInParent()
                        yield answer
        finally:
            self.open -= 1


def _headers(message: Any) -> dict[str, str]:
    return {header.key: header.raw_value.decode("latin-1") for header in message.headers.headers}


def _set(mutation: Any, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        option = mutation.set_headers.add(append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
        option.header.key = name
        option.header.raw_value = value.encode()


def _verdict_answer(phase: str, verdict: Verdict) -> Any:
    answer = ext_proc_pb2.ProcessingResponse()
    if verdict.immediate is not None:
        status, headers, body = verdict.immediate
        answer.immediate_response.status.code = status
        answer.immediate_response.body = body.encode()
        answer.immediate_response.details = "stand_in"
        _set(answer.immediate_response.headers, headers)
        return answer
    common = getattr(answer, phase).response
    common.SetInParent()
    _set(common.header_mutation, verdict.headers)
    common.header_mutation.remove_headers.extend(verdict.remove)
    fields = dict(verdict.metadata)
    if verdict.endpoints is not None:
        fields[names.METADATA_ENDPOINTS] = verdict.endpoints
    if fields:
        answer.dynamic_metadata.fields[names.METADATA_NAMESPACE].struct_value.update(fields)
    return answer
