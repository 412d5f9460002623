"""Lines between the processes of a host: messages, or the end of that connection."""

import asyncio
from typing import Final, cast

from extproc.queue.messages import (
    MAX_LINE_BYTES,
    Enter,
    Freed,
    Granted,
    Hello,
    MessageError,
    Refused,
    Reply,
    Request,
    decode,
    encode,
)
from extproc.queue.wire import Wire
from fuzz.reader import Reader
from fuzz.targets import JSON_WORDS
from recursant.agents.priority import PriorityClass
from recursant.routing.need import Need
from recursant.routing.picker import Refusal

_PIECES: Final = (1 << 20, 1, 7, 100)


class _Transport:
    """Takes everything."""

    def __init__(self) -> None:
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


class _Listener:
    """Remembers what it heard."""

    def __init__(self) -> None:
        self.messages: list[Request | Reply] = []
        self.lost_times = 0

    def received(self, wire: Wire, message: Request | Reply) -> None:
        del wire
        assert not self.lost_times
        self.messages.append(message)

    def lost(self, wire: Wire) -> None:
        del wire
        self.lost_times += 1


def check(data: bytes) -> None:
    """The first byte says in which pieces the rest comes over a wire."""
    reader = Reader(data)
    size = reader.pick(_PIECES)
    stream = reader.rest()
    expected, sound = _by_line(stream)
    listener, transport = _Listener(), _Transport()
    wire = Wire(listener)
    wire.connection_made(cast("asyncio.Transport", transport))
    for at in range(0, len(stream), size):
        if transport.aborted:
            break
        wire.data_received(stream[at : at + size])
        assert len(wire._read) <= MAX_LINE_BYTES + size
    assert transport.aborted == listener.lost_times == (not sound)
    # Compared as text: no number is equal to "not a number".
    assert repr(listener.messages) == repr(expected)
    wire.connection_lost(None)
    wire.connection_lost(None)
    assert listener.lost_times == 1


def _by_line(stream: bytes) -> tuple[list[Request | Reply], bool]:
    """The messages up to the first line that is none, and whether there was no such line."""
    found: list[Request | Reply] = []
    for line in stream.split(b"\n")[:-1]:
        try:
            found.append(decode(line))
        except MessageError:
            return found, False
    return found, True


_ENTER: Final = Enter(
    number=1,
    agent="chat-web",
    priority_class=PriorityClass.NORMAL,
    since_s=1.5,
    until_s=30.0,
    need=Need(family="qwen", exclusive=frozenset({"w9"}), prompt_tokens=100),
    known=True,
    shapes=False,
    fallback=None,
    held_fallback=None,
    waits_for=(Refusal.NO_WORKER,),
    cached=(("w1", 256),),
)
_GRANTED: Final = Granted(1, (3, 4), "Qwen/Qwen2.5-7B-Instruct", None, 64, "kept", 256, 2.5)
SEEDS: Final = (
    b"\0" + encode(Hello(2)) + encode(_ENTER) + encode(Freed()),
    b"\2" + encode(_GRANTED) + encode(Refused(1, Refusal.NO_WORKER)),
    b'\1["Leave",1]\n["Placed",2]\n["Declined",3]\n["Full",4]\n["Placed',
    b'\3["Leave",true]\n',
    b"\0" + b"[" * 1_200 + b"\n",
    # Once an error of its own kind.
    b'\0["Granted",1,[1e999],"m",null,null,null,0,1.5]\n',
)
WORDS: Final = (
    *JSON_WORDS,
    *(b'["%s",' % kind for kind in (b"Hello", b"Enter", b"Leave", b"Placed", b"Declined", b"Granted", b"Refused")),
    b'["Freed"]\n',
    b"]\n",
)
