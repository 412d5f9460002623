"""ext_proc messages in the shapes that we send and read, and nothing else.

What repeats from request to request is serialised once: protobuf messages concatenate, so an answer is a prebuilt
piece with the header mutations and a small piece with the dynamic metadata.
"""

from base64 import b64decode
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal

from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3.external_processor_pb2 import (
    CommonResponse,
    HeaderMutation,
    HttpHeaders,
    ProcessingRequest,
    ProcessingResponse,
)

from recursant import names
from recursant.problems import ApiProblem

_OVERWRITE: Final = HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
_ATTRIBUTES: Final = "envoy.filters.http.ext_proc"
_FAILED: Final = names.METADATA_FAILED.encode()

Headers = tuple[tuple[str, str], ...]
Phase = Literal["request_headers", "request_body", "response_headers"]


def parse(message: bytes) -> ProcessingRequest:
    """Parse one message of the stream.

    Raises:
        google.protobuf.message.DecodeError: the bytes are no ProcessingRequest.
    """
    return ProcessingRequest.FromString(message)


def headers_of(message: HttpHeaders) -> dict[str, bytes]:
    """The headers by lower-case name; of repeated ones the last. Envoy fills `raw_value`, other proxies `value`."""
    # A slice is a list. The container itself is read by index until an IndexError ends it, which costs its message.
    return {header.key: header.raw_value or header.value.encode() for header in message.headers.headers[:]}


def upstream_address(request: ProcessingRequest) -> str | None:
    """`ip:port` of the host that Envoy really used, from the attributes of a response-headers message."""
    attributes = request.attributes
    if _ATTRIBUTES not in attributes:
        return None
    fields = attributes[_ATTRIBUTES].fields
    return fields["upstream.address"].string_value or None if "upstream.address" in fields else None


def clamped_by_lua(request: ProcessingRequest, *, added_too: bool) -> bool:
    """Was the body's own bound on the output lowered on its way, or, with `added_too`, set where it had none?"""
    namespaces = request.metadata_context.filter_metadata
    if names.METADATA_NAMESPACE not in namespaces:
        return False
    fields = namespaces[names.METADATA_NAMESPACE].fields
    if names.METADATA_CLAMPED not in fields:
        return False
    how = fields[names.METADATA_CLAMPED].string_value
    return how == names.CLAMPED_LOWERED or (added_too and how == names.CLAMPED_ADDED)


def failed_attempt(request: ProcessingRequest, message: bytes) -> tuple[str, bytes] | None:
    """`ip:port` and answer of a worker whose 500 Envoy sent on to another one; None where it did not.

    Args:
        request: the message.
        message: the same in bytes. Hardly any names this, and finding that out there is ten times as fast.
    """
    # `in` would ask whether it is a number first, by an error.
    if message.find(_FAILED) < 0:
        return None
    namespaces = request.metadata_context.filter_metadata
    if names.METADATA_NAMESPACE not in namespaces:
        return None
    fields = namespaces[names.METADATA_NAMESPACE].fields
    if names.METADATA_FAILED not in fields:
        return None
    text = fields[names.METADATA_FAILED_BODY].string_value if names.METADATA_FAILED_BODY in fields else ""
    try:
        body = b64decode(text, validate=True)
    except ValueError:
        body = b""
    return fields[names.METADATA_FAILED].string_value, body


def continue_piece(phase: Phase, set_headers: Headers, remove_headers: tuple[str, ...] = ()) -> bytes:
    """Go on after the message of `phase`, with these mutations of the headers; bodies stay as they are."""
    response = ProcessingResponse()
    common: CommonResponse = getattr(response, phase).response
    common.SetInParent()
    if set_headers:
        _set(common.header_mutation, set_headers)
    if remove_headers:
        common.header_mutation.remove_headers.extend(remove_headers)
    return _serialised(response)


def _serialised(response: ProcessingResponse) -> bytes:
    data: bytes = response.SerializeToString()
    return data


def _ask_for_body() -> bytes:
    response = ProcessingResponse()
    response.request_headers.response.SetInParent()
    response.mode_override.request_header_mode = ProcessingMode.SEND
    response.mode_override.response_header_mode = ProcessingMode.SEND
    response.mode_override.request_body_mode = ProcessingMode.BUFFERED
    response.mode_override.response_trailer_mode = ProcessingMode.SEND
    return _serialised(response)


ASK_FOR_BODY: Final = _ask_for_body()
"""The answer to the request headers that asks for the whole body before anything is decided."""


def _ask_for_response_body() -> bytes:
    response = ProcessingResponse()
    response.mode_override.response_header_mode = ProcessingMode.SEND
    # Partial: a body beyond Envoy's buffer passes on as it is, instead of becoming an error of its own.
    response.mode_override.response_body_mode = ProcessingMode.BUFFERED_PARTIAL
    response.mode_override.response_trailer_mode = ProcessingMode.SEND
    return _serialised(response)


ASK_FOR_RESPONSE_BODY: Final = _ask_for_response_body()
"""To be appended to the answer to the response headers: show us the body before it goes on."""


def more_time(seconds: float) -> bytes:
    """Ask Envoy to wait that much longer for the answer to its last message. It looks at nothing else in here."""
    response = ProcessingResponse()
    response.override_message_timeout.FromMilliseconds(max(int(seconds * 1_000), 1))
    return _serialised(response)


# Of messages that differ in one string alone, everything around it depends on that string's length only: protobuf
# writes lengths before contents. So each is serialised once for a length, with this in the place of the string. A
# length of 127 looks like the filler and stands before it, so the last place is the right one; a short run might also
# be something else.
_FILLER: Final = "\x7f"
SHORTEST_FILLED: Final = 9


def filler(length: int) -> str:
    """So many bytes that stand for a string which comes later."""
    return _FILLER * length


def around(piece: bytes, filled: str) -> tuple[bytes, bytes]:
    """What stands before and after the filler in a piece that was made with it."""
    before, _, after = piece.rpartition(filled.encode())
    return before, after


@lru_cache(maxsize=1_024)
def _around_header(phase: Phase, name: str, length: int) -> tuple[bytes, bytes]:
    return around(continue_piece(phase, ((name, filler(length)),)), filler(length))


def header_piece(phase: Phase, name: str, value: str) -> bytes:
    """Set one header whose value belongs to this request alone; to be appended to an answer."""
    raw = value.encode()
    if len(raw) < SHORTEST_FILLED:
        return continue_piece(phase, ((name, value),))
    before, after = _around_header(phase, name, len(raw))
    return before + raw + after


def metadata_piece(fields: Mapping[str, str | int]) -> bytes:
    """Dynamic metadata in our namespace, to be appended to an answer."""
    response = ProcessingResponse()
    namespace = response.dynamic_metadata.fields[names.METADATA_NAMESPACE].struct_value.fields
    for key, value in fields.items():
        if isinstance(value, str):
            namespace[key].string_value = value
        else:
            namespace[key].number_value = value
    return _serialised(response)


def go_on(request: ProcessingRequest) -> bytes:
    """The empty "continue" that fits a message. The oneof must be set even when empty, or Envoy drops the stream."""
    response = ProcessingResponse()
    match request.WhichOneof("request"):
        case "request_headers":
            response.request_headers.response.SetInParent()
        case "request_body":
            response.request_body.response.SetInParent()
        case "response_headers":
            response.response_headers.response.SetInParent()
        case "response_body":
            response.response_body.response.SetInParent()
        case "request_trailers":
            response.request_trailers.SetInParent()
        case "response_trailers":
            response.response_trailers.SetInParent()
    return _serialised(response)


def immediate(problem: ApiProblem, extra_headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """Answer the client now with an OpenAI-shaped error."""
    headers = [("content-type", "application/json")]
    if problem.retry_after_s is not None:
        headers.append((names.RETRY_AFTER, str(problem.retry_after_s)))
    headers.extend(extra_headers)
    return immediate_answer(problem.status, headers, problem.body(), details=f"recursant_{problem.code}")


def immediate_answer(status: int, headers: Iterable[tuple[str, str]], body: bytes, *, details: str) -> bytes:
    """Answer the client now; `details` goes to the access log."""
    response = ProcessingResponse()
    answer = response.immediate_response
    answer.status.code = status
    _set(answer.headers, headers)
    answer.body = body
    answer.details = details
    return _serialised(response)


def _set(mutation: HeaderMutation, headers: Iterable[tuple[str, str]]) -> None:
    for name, value in headers:
        option = mutation.set_headers.add()
        option.append_action = _OVERWRITE
        option.header.key = name
        option.header.raw_value = value.encode()
