"""Sessions that do what their messages say, for the tests of the transports."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from extproc.stream import Session, StreamError, Unready

PROCESS = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"


@dataclass
class Script(Session):
    """Messages are commands: `echo …`, `late …`, `silent`, `bad`, `bug`, `two …`, `size N`."""

    send: Callable[[bytes], None]
    received: list[bytes] = field(default_factory=list)
    closed: int = 0
    # An error alone would not tell: a transport ends the stream for it, which is over.
    after_close: int = 0

    def receive(self, message: bytes) -> bytes | None:
        self.after_close += self.closed
        assert not self.closed, "a message after close()"
        self.received.append(message)
        verb, _, rest = message.partition(b" ")
        match verb:
            case b"echo":
                return rest
            case b"late":
                asyncio.get_running_loop().call_later(0.01, self.send, rest)
                return None
            case b"two":
                self.send(rest + b"1")
                return rest + b"2"
            case b"size":
                return b"x" * int(rest)
            case b"silent":
                return None
            case b"unready":
                raise Unready("not yet")
            case b"bad":
                raise StreamError("no such phase")
            case _:
                raise RuntimeError("a bug in the session")

    def close(self) -> None:
        self.closed += 1


@dataclass
class Scripts:
    """A `SessionFactory` that remembers its sessions."""

    kind: type[Script] = Script
    sessions: list[Script] = field(default_factory=list)

    def __call__(self, send: Callable[[bytes], None]) -> Script:
        session = self.kind(send)
        self.sessions.append(session)
        return session

    async def all_closed(self) -> None:
        """Wait until every session is closed, and check that it happened once each."""
        async with asyncio.timeout(10):
            while not all(session.closed for session in self.sessions):  # noqa: ASYNC110 - no event to wait for
                await asyncio.sleep(0.005)
        assert [session.closed for session in self.sessions] == [1] * len(self.sessions)
        assert not any(session.after_close for session in self.sessions)
