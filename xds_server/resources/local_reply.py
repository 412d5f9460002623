"""Envoy's own replies as OpenAI-shaped JSON: no route, no worker, too large, too slow (DESIGN §7, §9).

The same code writes Lua's refusals: Lua answers with the message, this gives it its shape. What is JSON already
(extproc's refusals) stays as it is.
"""

from dataclasses import dataclass
from typing import Final

from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.access_loggers.filters.cel import v3 as cel
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.google.protobuf import Any

from recursant import names
from recursant.problems import DEFAULT_RETRY_AFTER_S
from xds_server.resources.proto import Json, struct

_JSON: Final = "application/json"
_CEL: Final = "envoy.access_loggers.extension_filters.cel"
_ALREADY_JSON: Final = f"response.headers['content-type'] == '{_JSON}'"


@dataclass(frozen=True, slots=True)
class Shape:
    """The error that a CEL expression selects; its message is what the reply says, unless it says nothing."""

    when: str
    type: str
    code: str
    param: str | None = None
    message: str = "%LOCAL_REPLY_BODY%"


# The first that fits counts. Statuses that nobody sends on purpose fall to the last two.
SHAPES: Final = (
    Shape(
        # Envoy's own 400 has no text, only a word for its reason.
        "response.code == 400 && response.code_details != 'lua_response'",
        "invalid_request_error",
        "invalid_request",
        message="the request is malformed: %RESPONSE_CODE_DETAILS%",
    ),
    Shape("response.code == 400", "invalid_request_error", "invalid_request"),
    Shape("response.code == 403", "permission_error", "model_not_allowed", "model"),
    Shape(
        "response.code == 404 && request.url_path.startsWith('/v1/models/')",
        "not_found_error",
        "model_not_found",
        "model",
    ),
    Shape("response.code == 404", "not_found_error", "not_found"),
    Shape("response.code == 408", "invalid_request_error", "request_timeout"),
    Shape("response.code == 413", "invalid_request_error", "request_too_large", "body"),
    Shape("response.code == 415", "invalid_request_error", "unsupported_encoding"),
    Shape("response.code == 431", "invalid_request_error", "headers_too_large"),
    Shape("response.code == 501", "invalid_request_error", "not_implemented"),
    Shape("response.code == 429", "rate_limit_error", "rate_limited"),
    Shape("response.code == 503", "service_unavailable_error", "unavailable"),
    Shape("response.code == 504", "timeout_error", "timeout"),
    Shape("response.code >= 500", "server_error", "internal_error"),
    Shape("response.code >= 400", "invalid_request_error", "invalid_request"),
)
_RETRYABLE: Final = (429, 503)


def local_replies() -> hcm.LocalReplyConfig:
    """The mappers, in order."""
    return hcm.LocalReplyConfig(mappers=[_untouched(), *(_mapper(shape) for shape in SHAPES)])


def _selected(expression: str) -> accesslog.AccessLogFilter:
    return accesslog.AccessLogFilter(
        extension_filter=accesslog.ExtensionFilter(
            name=_CEL, typed_config=Any.pack(cel.ExpressionFilter(expression=expression))
        )
    )


def _untouched() -> hcm.ResponseMapper:
    text = core.DataSource(inline_string="%LOCAL_REPLY_BODY%")
    return hcm.ResponseMapper(
        filter=_selected(_ALREADY_JSON),
        body_format_override=core.SubstitutionFormatString(text_format_source=text, content_type=_JSON),
    )


def _mapper(shape: Shape) -> hcm.ResponseMapper:
    error: Json = {"message": shape.message, "type": shape.type, "param": shape.param, "code": shape.code}
    retryable = any(f"== {status}" in shape.when for status in _RETRYABLE)
    return hcm.ResponseMapper(
        filter=_selected(shape.when),
        body_format_override=core.SubstitutionFormatString(json_format=struct({"error": error}), content_type=_JSON),
        headers_to_add=[retry_after()] if retryable else [],
    )


def retry_after(value: str = str(DEFAULT_RETRY_AFTER_S)) -> core.HeaderValueOption:
    """`Retry-After`, where the answer has none."""
    return core.HeaderValueOption(
        header=core.HeaderValue(key=names.RETRY_AFTER, value=value),
        append_action=core.HeaderValueOptionHeaderAppendAction.ADD_IF_ABSENT,
    )


def retry_after_where_due() -> core.HeaderValueOption:
    """The same for answers of workers: an empty value, for every other status, adds nothing."""
    due = " || ".join(f"response.code == {status}" for status in _RETRYABLE)
    return retry_after(f"%CEL({due} ? '{DEFAULT_RETRY_AFTER_S}' : '')%")
