"""Length-prefixed messages in a stream of DATA frames.

https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md, "Length-Prefixed-Message": one byte that says
whether the message is compressed, four bytes of length, the message. Frames and messages do not align.
"""

from struct import Struct
from typing import Final

from extproc.grpc import status

_PREFIX: Final = Struct(">BI")
PREFIX_BYTES: Final = _PREFIX.size


class FramingError(Exception):
    """What arrived is no message that we take.

    Attributes:
        status: the gRPC status that ends the call.
    """

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.status = code


def framed(message: bytes) -> bytes:
    """A message as it goes out: uncompressed."""
    return _PREFIX.pack(0, len(message)) + message


def whole_message(content: bytes, max_bytes: int) -> bytes | None:
    """The message, where one DATA frame holds exactly one, as nearly all do; None leaves it to a `MessageReader`."""
    if len(content) < PREFIX_BYTES:
        return None
    flag, size = _PREFIX.unpack_from(content)
    if flag or size != len(content) - PREFIX_BYTES or size > max_bytes:
        return None
    return content[PREFIX_BYTES:]


class MessageReader:
    """Cuts the content of one stream into messages.

    Args:
        max_bytes: the largest message taken. A larger one is refused when its prefix is seen, before it is stored.
    """

    __slots__ = ("_buffer", "_max_bytes", "_needed")

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()
        # Bytes that the buffer must hold for the next step: a prefix, or a whole message with its prefix.
        self._needed = PREFIX_BYTES

    @property
    def buffered(self) -> int:
        """Bytes of a message that is not whole yet; 0 between messages."""
        return len(self._buffer)

    def feed(self, content: bytes) -> list[bytes]:
        """Take the content of one DATA frame; give the messages that are whole now.

        Raises:
            FramingError: a message is compressed, or too large.
        """
        buffer = self._buffer
        buffer += content
        messages = []
        while len(buffer) >= self._needed:
            if self._needed == PREFIX_BYTES:
                self._needed += self._checked_size(buffer)
            if len(buffer) < self._needed:
                break
            messages.append(bytes(memoryview(buffer)[PREFIX_BYTES : self._needed]))
            del buffer[: self._needed]
            self._needed = PREFIX_BYTES
        return messages

    def _checked_size(self, buffer: bytearray) -> int:
        flag, size = _PREFIX.unpack_from(buffer)
        if flag == 1:
            raise FramingError(status.UNIMPLEMENTED, "compressed messages are not taken")
        if flag:
            raise FramingError(status.INTERNAL, "a message prefix that gRPC does not know")
        if size > self._max_bytes:
            raise FramingError(status.RESOURCE_EXHAUSTED, f"a message of {size} bytes, allowed are {self._max_bytes}")
        return int(size)
