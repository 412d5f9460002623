"""Bounds on what one connection may cost us, and the buckets that keep floods within them."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `burst` at once, and `per_second` in the long run."""

    burst: float
    per_second: float


class TokenBucket:
    """Keeps a `Rate`. Time is passed in, in seconds of any clock that does not go back."""

    __slots__ = ("_level", "_rate", "_updated")

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._level = rate.burst
        self._updated: float | None = None

    def spend(self, now: float, cost: float = 1.0) -> bool:
        """Take `cost` out; False when there is not enough left."""
        rate = self._rate
        if self._updated is not None:
            self._level = min(rate.burst, self._level + (now - self._updated) * rate.per_second)
        self._updated = now
        self._level -= cost
        return self._level >= 0


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may ask of us. Envoy under full load stays far below each of them.

    Attributes:
        concurrent_streams: streams at once; one is one request's life. A client that needs more opens
            another connection.
        header_block_bytes: a compressed header block, its CONTINUATION frames included.
        header_list_bytes: the same decompressed, as SETTINGS_MAX_HEADER_LIST_SIZE counts it.
        continuations: CONTINUATION frames of one header block.
        frame_bytes: the longest frame payload that we take.
        stream_window: bytes that a client may send ahead on one stream.
        connection_window: the same for all streams together.
        pending_bytes: answers that wait for the client to make room.
        control: frames that carry no request: PING, SETTINGS (which weigh `SETTINGS_COST`), PRIORITY, empty DATA,
            unknown types.
        chatter: frames that cost us nothing but their reading, and that come with every request: WINDOW_UPDATE, and
            the RST_STREAM that Envoy sends after both sides have ended a stream.
        early_resets: streams reset before they carried anything, and those that we must reset: the "rapid reset"
            of CVE-2023-44487 and its mirror image, CVE-2025-8671.
        abandoned: streams reset after their request and before our answer, and those above `concurrent_streams`.
            Envoy does that to all of them when it finds us too slow, so this must not end the connection of a busy
            gateway.
    """

    concurrent_streams: int = 16_384
    header_block_bytes: int = 32_768
    header_list_bytes: int = 65_536
    continuations: int = 16
    frame_bytes: int = 16_384
    stream_window: int = 1_048_576
    connection_window: int = 16_777_216
    pending_bytes: int = 67_108_864
    control: Rate = Rate(burst=10_000, per_second=1_000)
    chatter: Rate = Rate(burst=100_000, per_second=20_000)
    early_resets: Rate = Rate(burst=1_000, per_second=100)
    abandoned: Rate = Rate(burst=50_000, per_second=10_000)


# A change of the initial window touches every open stream, so SETTINGS weigh more than a PING.
SETTINGS_COST: Final = 100
