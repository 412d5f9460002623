"""Header blocks of requests: decoded once, checked against RFC 9113 §8, and remembered while they repeat."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from hpack import Decoder
from hpack.exceptions import HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from extproc.http2.errors import ErrorCode, Http2ConnectionError

# Envoy's ext_proc streams differ in nothing, so a handful of blocks is all of its traffic.
_MAX_REMEMBERED: Final = 64

# RFC 9113 §8.2.1: no control characters, no upper case, no blanks, nothing outside ASCII, no colon but the first.
_NAME: Final = re.compile(rb"[!-9;-@\[-~]+")
_VALUE: Final = re.compile(rb"[^\x00\r\n]*")
_DIGITS: Final = re.compile(rb"[0-9]{1,18}")
# §8.2.2; `te` has its own rule.
_CONNECTION_SPECIFIC: Final = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))

Fields = Sequence[tuple[bytes, bytes]]


class MalformedError(Exception):
    """A request that RFC 9113 §8.1.1 calls malformed: its stream ends with PROTOCOL_ERROR."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What a request's header block says, as far as a gRPC server looks.

    Attributes:
        method: the value of `:method`.
        path: the value of `:path`.
        content_type: empty where there is none.
        content_length: None where there is none.
    """

    method: bytes
    path: bytes
    content_type: bytes
    content_length: int | None


class HeaderDecoder:
    """Decodes the header blocks of one connection.

    A block that left the dynamic table as it was, and comes again while the table is still the same, means the
    same again: it is looked up instead of decoded. Every change of the table forgets all blocks.

    Args:
        max_list_bytes: the largest decompressed list, as SETTINGS_MAX_HEADER_LIST_SIZE counts it.
    """

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = Decoder(max_list_bytes)
        self._table = _WatchedTable()
        self._decoder.header_table = self._table
        self._heads: dict[bytes, RequestHead] = {}

    def request(self, block: bytes) -> RequestHead:
        """The head of a new stream.

        Raises:
            MalformedError: the request breaks a rule of §8; the decoder is fine.
            Http2ConnectionError: the block cannot be decoded, and neither can those after it.
        """
        head = self._heads.get(block)
        if head is not None:
            return head
        before = self._table.changes
        fields = self.decode(block)
        head = request_head(fields)
        if self._table.changes == before:
            if len(self._heads) >= _MAX_REMEMBERED:
                self._heads.clear()
            self._heads[block] = head
        return head

    def decode(self, block: bytes) -> Fields:
        """The fields of any block, unchecked.

        Raises:
            Http2ConnectionError: the block cannot be decoded, and neither can those after it.
        """
        before = self._table.changes
        try:
            fields: Fields = self._decoder.decode(block, raw=True)
        except OversizedHeaderListError as error:
            # Decoding stopped midway, so the table is lost (RFC 7541 §2.3.2), whoever is to blame.
            raise Http2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "header list too large") from error
        except HPACKError as error:
            raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, "undecodable header block") from error
        if self._table.changes != before:
            self._heads.clear()
        return fields


class _WatchedTable(HeaderTable):  # type: ignore[misc] # hpack comes untyped here
    """The dynamic table, counting its changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        """Insert an entry; may evict others, or all."""
        self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> Any:
        """The size that the encoder chose, in bytes."""
        return HeaderTable.maxsize.fget(self)

    @maxsize.setter
    def maxsize(self, size: int) -> None:
        self.changes += 1
        HeaderTable.maxsize.fset(self, size)


def request_head(fields: Fields) -> RequestHead:
    """Check the fields of a request (§8.2, §8.3.1) and keep what a gRPC server needs.

    Raises:
        MalformedError: a rule is broken.
    """
    pseudo: dict[bytes, bytes] = {}
    content_type = b""
    content_length: int | None = None
    regular = False
    for name, value in fields:
        _check_value(value)
        if name.startswith(b":"):
            if regular:
                raise MalformedError("a pseudo-header field after a regular one")
            if name not in _PSEUDO:
                raise MalformedError("an unknown pseudo-header field")
            if name in pseudo:
                raise MalformedError("a pseudo-header field twice")
            pseudo[name] = value
            continue
        regular = True
        _check_name(name)
        if name == b"te" and value.lower() != b"trailers":
            raise MalformedError("te other than trailers")
        if name == b"content-type":
            content_type = value
        elif name == b"content-length":
            content_length = _content_length(value, content_length)
    return RequestHead(
        method=_required(pseudo, b":method"),
        path=_path(pseudo),
        content_type=content_type,
        content_length=content_length,
    )


def check_trailers(fields: Fields) -> None:
    """Check a trailer section (§8.1): regular fields only.

    Raises:
        MalformedError: a rule is broken.
    """
    for name, value in fields:
        if name.startswith(b":"):
            raise MalformedError("a pseudo-header field in trailers")
        _check_name(name)
        _check_value(value)


def _check_name(name: bytes) -> None:
    if not _NAME.fullmatch(name):
        raise MalformedError("a field name with forbidden characters")
    if name in _CONNECTION_SPECIFIC:
        raise MalformedError("a connection-specific field")


def _check_value(value: bytes) -> None:
    if not _VALUE.fullmatch(value) or value[:1] in (b" ", b"\t") or value[-1:] in (b" ", b"\t"):
        raise MalformedError("a field value with forbidden characters")


def _required(pseudo: dict[bytes, bytes], name: bytes) -> bytes:
    value = pseudo.get(name)
    if not value:
        raise MalformedError("a required pseudo-header field is missing or empty")
    return value


def _path(pseudo: dict[bytes, bytes]) -> bytes:
    if pseudo.get(b":method") == b"CONNECT":
        # §8.5: CONNECT has an authority and neither scheme nor path.
        if b":scheme" in pseudo or b":path" in pseudo:
            raise MalformedError("CONNECT with a scheme or a path")
        _required(pseudo, b":authority")
        return b""
    _required(pseudo, b":scheme")
    return _required(pseudo, b":path")


def _content_length(value: bytes, before: int | None) -> int:
    if not _DIGITS.fullmatch(value):
        raise MalformedError("content-length is no number")
    length = int(value)
    if before is not None and before != length:
        raise MalformedError("two different content-lengths")
    return length
