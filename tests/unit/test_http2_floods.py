"""RFC 9113 §10.5, and the attacks with names: what a connection may ask of us is bounded, what Envoy asks passes."""

import pytest
from http2_kit import (
    ACK,
    DATA,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    INITIAL_WINDOW_SIZE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    Client,
    Frame,
    client,
    connection_error,
    data,
    ping,
    rst_stream,
    settings,
    window_update,
)

from extproc.http2.limits import Limits, Rate, TokenBucket

TIGHT = Rate(burst=50, per_second=10)
# The two SETTINGS frames of the handshake cost 200.
TIGHT_CONTROL = Rate(burst=250, per_second=0)


def flood(peer: Client, frames: list[Frame]) -> list[Frame]:
    """Send `frames` one by one until the connection ends; gives the last output."""
    out: list[Frame] = []
    for frame in frames:
        out = peer.send(frame)
        if peer.connection.closed:
            break
    return out


FLOODS = {
    "ping": ping(),
    "ping answers": ping(flags=ACK),
    "settings": settings((INITIAL_WINDOW_SIZE, 70_000)),
    "settings answers": Frame(SETTINGS, ACK),
    "priority": Frame(PRIORITY, 0, 1, bytes(5)),
    "unknown frames": Frame(0xFA, 0, 1, b"x"),
    "empty data": data(1, b""),
    "padded empty data": data(1, b"\x00", 0x8),
    "goaway": Frame(0x7, 0, 0, bytes(8)),
}


@pytest.mark.parametrize("frame", FLOODS.values(), ids=FLOODS.keys())
def test_s10_5_frames_that_carry_no_request_are_bounded(frame: Frame) -> None:
    peer = client(control=Rate(burst=1_000, per_second=10))
    peer.opened(1)
    assert connection_error(peer, flood(peer, [frame] * 1_100)) == ENHANCE_YOUR_CALM


def test_s10_5_window_updates_are_bounded() -> None:
    peer = client(chatter=TIGHT)
    peer.opened(1)
    assert connection_error(peer, flood(peer, [window_update(1, 1)] * 60)) == ENHANCE_YOUR_CALM


def test_s10_5_resets_of_closed_streams_are_bounded() -> None:
    peer = client(chatter=TIGHT)
    peer.opened(1)
    assert connection_error(peer, flood(peer, [rst_stream(1)] * 60)) == ENHANCE_YOUR_CALM


def test_s10_5_data_on_streams_that_we_reset_is_bounded() -> None:
    peer = client(control=TIGHT_CONTROL)
    handler = peer.opened(1)
    handler.end()
    peer.take()
    assert connection_error(peer, flood(peer, [data(1, b"x")] * 60)) == ENHANCE_YOUR_CALM


def test_rapid_reset_is_bounded() -> None:
    """CVE-2023-44487: streams opened and reset at once, so that the limit on concurrent ones never holds."""
    peer = client(early_resets=TIGHT)
    frames = [frame for number in range(60) for frame in (peer.headers(2 * number + 1), rst_stream(2 * number + 1))]
    assert connection_error(peer, flood(peer, frames)) == ENHANCE_YOUR_CALM


def test_resets_that_we_are_made_to_send_are_bounded() -> None:
    """CVE-2025-8671, "MadeYouReset": the client's mistakes make us reset its streams."""
    peer = client(early_resets=TIGHT)
    frames = [
        frame for number in range(60) for frame in (peer.headers(2 * number + 1), window_update(2 * number + 1, 0))
    ]
    assert connection_error(peer, flood(peer, frames)) == ENHANCE_YOUR_CALM


def test_refused_streams_are_bounded_loosely() -> None:
    """A burst above our limit on streams comes from a client that has not read it yet."""
    peer = client(concurrent_streams=1, early_resets=TIGHT)
    peer.opened(1)
    frames = [peer.headers(2 * number + 1) for number in range(1, 500)]
    assert flood(peer, frames)[-1].kind == RST_STREAM
    assert not peer.connection.closed
    peer = client(concurrent_streams=1, abandoned=TIGHT)
    peer.opened(1)
    assert connection_error(peer, flood(peer, [peer.headers(2 * number + 1) for number in range(1, 60)])) == (
        ENHANCE_YOUR_CALM
    )


def test_streams_abandoned_before_their_answer_are_bounded() -> None:
    peer = client(abandoned=TIGHT)
    frames = [
        frame
        for number in range(60)
        for frame in (peer.headers(2 * number + 1), data(2 * number + 1, b"x"), rst_stream(2 * number + 1))
    ]
    assert connection_error(peer, flood(peer, frames)) == ENHANCE_YOUR_CALM


def test_envoys_own_resets_pass() -> None:
    """Envoy resets every stream when the response has ended, after our answers: any number of them is normal."""
    peer = client(answer=b"ok", early_resets=TIGHT, abandoned=TIGHT, control=TIGHT_CONTROL, chatter=TIGHT)
    for number in range(500):
        stream_id = 2 * number + 1
        peer.send(peer.headers(stream_id), data(stream_id, b"request"), data(stream_id, b"response"))
        assert peer.send(rst_stream(stream_id)) == []
    assert not peer.connection.closed
    assert peer.connection.open_streams == 0


def test_envoys_hang_ups_pass() -> None:
    """When the client hangs up, Envoy ends the stream and then resets it."""
    peer = client(early_resets=TIGHT, abandoned=TIGHT, control=TIGHT_CONTROL)
    for number in range(500):
        stream_id = 2 * number + 1
        peer.send(peer.headers(stream_id), data(stream_id, b"x"), data(stream_id, b"", END_STREAM))
        peer.handlers.pop(stream_id).end()
        peer.take()
        assert peer.send(rst_stream(stream_id)) == []
    assert not peer.connection.closed


def test_the_default_limits_let_a_busy_gateway_pass() -> None:
    """20,000 streams within one second, all of them too slow for Envoy, with its pings and updates in between."""
    peer = client()
    for number in range(20_000):
        stream_id = 2 * number + 1
        peer.now = number / 20_000
        peer.send(peer.headers(stream_id), data(stream_id, b"x"), rst_stream(stream_id))
        peer.handlers.clear()
        if number % 100 == 0:
            peer.send(ping(), window_update(0, 1_000))
    assert not peer.connection.closed


def test_floods_do_not_pile_up_output() -> None:
    """Each frame that we answer is answered with a frame no larger: the output is bounded by the input."""
    peer = client()
    sent = 17 * 5_000
    peer.connection.receive(bytes(ping()) * 5_000)
    while peer.connection.run(0.0, 64):
        pass
    assert len(peer.connection.take()) <= sent


def test_memory_of_closed_streams_is_bounded() -> None:
    peer = client(concurrent_streams=1, early_resets=Rate(1e9, 1e9))
    peer.opened(1)
    for number in range(1, 5_000):
        peer.send(peer.headers(2 * number + 1))
    registry = peer.connection._registry
    assert len(registry.live) == 1
    assert len(registry._reset) <= 1_024
    peer.send(rst_stream(1))
    for number in range(5_000, 10_000):
        peer.send(peer.headers(2 * number + 1))
        peer.send(rst_stream(2 * number + 1))
    assert len(registry._ended) <= 1_024
    assert registry.live == {}


def test_one_byte_updates_do_not_scan_blocked_streams() -> None:
    """Streams that wait for their own window are not touched by updates of the connection's."""
    peer = client((INITIAL_WINDOW_SIZE, 0))
    for number in range(200):
        peer.opened(2 * number + 1).send(b"x" * 10)
        peer.take()
    sender = peer.connection._sender
    assert len(sender._ready) == 0
    peer.send(window_update(1, 10))
    assert len(sender._ready) == 0


# --- the bucket ---


def test_a_bucket_gives_its_burst_and_then_its_rate() -> None:
    bucket = TokenBucket(Rate(burst=3, per_second=2))
    assert [bucket.spend(10.0) for _ in range(4)] == [True, True, True, False]
    # The failed one was charged as well: it takes a second for two.
    assert not bucket.spend(10.4)
    assert bucket.spend(12.0)


def test_a_bucket_never_holds_more_than_its_burst() -> None:
    bucket = TokenBucket(Rate(burst=3, per_second=2))
    bucket.spend(0.0)
    assert [bucket.spend(1_000.0) for _ in range(4)] == [True, True, True, False]


def test_a_bucket_spends_what_is_asked() -> None:
    bucket = TokenBucket(Rate(burst=10, per_second=0))
    assert bucket.spend(0.0, 10)
    assert not bucket.spend(0.0, 1)


def test_the_default_limits_are_consistent() -> None:
    limits = Limits()
    assert limits.stream_window <= limits.connection_window < 2**31
    assert 16_384 <= limits.frame_bytes < 2**24
    assert {DATA, RST_STREAM} == {0, 3}
