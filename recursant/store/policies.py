"""The applied policies in Redis: written with compare-and-set, followed by everybody. Only commands of Redis 7.0.

Deleting marks an entry, so that one that is missing is told from one that was lost, which whoever knew it writes again.
Only old marks leave a full hash (`forget`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from recursant.agents import policy_codec
from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import PolicyError, content_version, from_message, to_message
from recursant.store.backoff import Backoff
from recursant.store.exchange import (
    REDIS_ERRORS,
    TIMEOUT_S,
    StoreError,
    bounded,
    cancellations_so_far,
    connection_pool,
    raise_if_cancelled_since,
    reason_of,
)
from recursant.store.keys import AGENT_EVENTS, AGENTS
from recursant.store.quiet_log import QuietLog
from recursant.v1.agent_policy_pb2 import AgentPolicy as AgentPolicyMessage

LOAD_TIMEOUT_S: Final = 5.0
# Policies, the deleted ones among them, that one fleet may have.
MAX_POLICIES: Final = 10_000
# The hash is read again after this long: whatever a lost message changed, or a flushed server forgot, heals then.
RELOAD_AFTER_S: Final = 5.0
_POLL_S: Final = 0.5
_DEAD_AFTER_S: Final = 2.0
_RECONNECT_FIRST_S: Final = 0.1
_RECONNECT_LONGEST_S: Final = 1.0

# KEYS: the hash. ARGV: agent id, the entry as the writer knows it ("" for none), the new entry, channel, most entries.
# Answers 1 when written, 0 when somebody else was faster, -1 when the hash is full.
_SWAP: Final = """
local known = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if known ~= ARGV[2] then return 0 end
if known == '' and redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[5]) then return -1 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('PUBLISH', ARGV[4], ARGV[1])
return 1
"""

# KEYS: the hash. ARGV: agent id and entry, as often as there are entries. Answers how many were still there, and went.
_FORGET: Final = """
local gone = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then gone = gone + redis.call('HDEL', KEYS[1], ARGV[i]) end
end
return gone
"""

_log = logging.getLogger(__name__)


class FullError(StoreError):
    """There are as many entries as there may be."""


@dataclass(frozen=True, slots=True)
class StoredPolicy:
    """One entry of the hash.

    Attributes:
        agent_id: whose.
        policy: None where it was deleted.
        version: of the policy's content; empty where it was deleted.
        set_by: who wrote it.
        set_at_ms: when, Unix time.
        raw: the entry itself, for compare-and-set.
    """

    agent_id: str
    policy: AgentPolicy | None
    version: str
    set_by: str
    set_at_ms: int
    raw: bytes

    @classmethod
    def of(cls, policy: AgentPolicy, *, set_by: str, set_at_ms: int) -> "StoredPolicy":
        """The entry for a policy that is set now."""
        message = to_message(policy)
        message.set_by, message.set_at_ms = set_by, set_at_ms
        return cls(policy.agent_id, policy, message.version, set_by, set_at_ms, _serialised(message))

    @classmethod
    def gone(cls, agent_id: str, *, set_by: str, set_at_ms: int) -> "StoredPolicy":
        """The entry for a policy that is deleted now."""
        message = AgentPolicyMessage(agent_id=agent_id, set_by=set_by, set_at_ms=set_at_ms, deleted=True)
        return cls(agent_id, None, "", set_by, set_at_ms, _serialised(message))

    @classmethod
    def read(cls, raw: bytes) -> "StoredPolicy":
        """An entry as it was read.

        Raises:
            PolicyError: it cannot be used; names the field.
        """
        message = policy_codec.parse(raw)
        if message.deleted:
            return cls(message.agent_id, None, "", message.set_by, message.set_at_ms, raw)
        policy = from_message(message)
        return cls(policy.agent_id, policy, content_version(policy), message.set_by, message.set_at_ms, raw)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Every entry that can be read, by agent id, and the ids of those that cannot."""

    entries: dict[str, StoredPolicy]
    unreadable: frozenset[str]


@dataclass(frozen=True, slots=True)
class Changed:
    """One entry was written."""

    entry: StoredPolicy


@dataclass(frozen=True, slots=True)
class Away:
    """Redis does not answer. `Loaded` comes when it is back."""

    reason: str


PolicyEvent = Loaded | Changed | Away


class PolicyStore:
    """What the product does with policies in Redis. Connects when first used."""

    def __init__(self, url: str) -> None:
        """Take the URL of the server.

        Raises:
            ValueError: it is none.
        """
        self._pool = connection_pool(url, 4)
        self._redis: Redis = Redis(connection_pool=self._pool)
        self._malformed = QuietLog(_log)

    async def raw(self, agent_id: str) -> bytes | None:
        """The entry of one agent as it stands.

        Raises:
            StoreError: it cannot be read.
        """
        async with bounded(TIMEOUT_S):
            return await cast("Awaitable[bytes | None]", self._redis.hget(AGENTS, agent_id))

    async def swap(self, known: bytes | None, entry: StoredPolicy) -> bool:
        """Write an entry if what is there is still `known`; False where somebody else was faster. One step.

        Raises:
            FullError: there are too many.
            StoreError: it may not have been written.
        """
        async with bounded(TIMEOUT_S):
            done = await cast(
                "Awaitable[int]",
                self._redis.eval(
                    _SWAP,
                    1,
                    AGENTS,
                    entry.agent_id,
                    known or b"",
                    entry.raw,
                    AGENT_EVENTS,
                    str(MAX_POLICIES),
                ),
            )
        if done < 0:
            raise FullError(f"there are {MAX_POLICIES} policies already, those deleted of late among them")
        return done == 1

    async def forget(self, entries: Sequence[StoredPolicy]) -> int:
        """Take entries out of the hash that are still as they are known; how many went.

        Raises:
            StoreError: they may still be there.
        """
        if not entries:
            return 0
        arguments = [part for entry in entries for part in (entry.agent_id, entry.raw)]
        async with bounded(TIMEOUT_S):
            return await cast("Awaitable[int]", self._redis.eval(_FORGET, 1, AGENTS, *arguments))

    async def load(self) -> Loaded:
        """Every entry; what cannot be read is left out with a warning.

        Raises:
            StoreError: the hash cannot be read.
        """
        async with bounded(LOAD_TIMEOUT_S):
            found = await cast("Awaitable[dict[bytes, bytes]]", self._redis.hgetall(AGENTS))
        entries: dict[str, StoredPolicy] = {}
        unreadable: set[str] = set()
        for agent_id, raw in found.items():
            name = agent_id.decode(errors="replace")
            entry = self._read(name, raw)
            if entry is None:
                unreadable.add(name)
            else:
                entries[name] = entry
        return Loaded(entries, frozenset(unreadable))

    async def watch(self) -> AsyncGenerator[PolicyEvent, None]:
        """Follow the policies for ever, over every loss of the server. Begins with `Loaded` or `Away`.

        Close it (`contextlib.aclosing`) when done.
        """
        backoff = Backoff(_RECONNECT_FIRST_S, _RECONNECT_LONGEST_S)
        told_away = False
        before = cancellations_so_far()
        while True:
            raise_if_cancelled_since(before)
            pubsub = self._redis.pubsub()
            try:
                await self._subscribe(pubsub)
                # After the subscription, so that nothing falls between the two.
                yield await self.load()
                backoff.reset()
                told_away = False
                heard = reload_at = time.monotonic()
                reload_at += RELOAD_AFTER_S
                while True:
                    message = await pubsub.get_message(timeout=_POLL_S)
                    raise_if_cancelled_since(before)
                    now = time.monotonic()
                    if message is not None:
                        heard = now
                        entry = await self._entry_of(message)
                        if entry is not None:
                            yield Changed(entry)
                    elif now - heard >= _DEAD_AFTER_S:
                        raise StoreError(f"no answer for {_DEAD_AFTER_S:g} s")
                    else:
                        await pubsub.ping()
                    if now >= reload_at:
                        reload_at = now + RELOAD_AFTER_S
                        yield await self.load()
            except (StoreError, *REDIS_ERRORS) as error:
                if not told_away:
                    told_away = True
                    yield Away(reason_of(error))
            finally:
                with contextlib.suppress(*REDIS_ERRORS):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            await asyncio.sleep(backoff.next())

    async def close(self) -> None:
        """Close all connections."""
        with contextlib.suppress(*REDIS_ERRORS):
            await self._redis.aclose()
            await self._pool.aclose()

    async def _subscribe(self, pubsub: PubSub) -> None:
        async with bounded(TIMEOUT_S):
            await pubsub.subscribe(AGENT_EVENTS)
            await pubsub.get_message(timeout=None)  # its confirmation

    async def _entry_of(self, message: dict[str, Any]) -> StoredPolicy | None:
        if message["type"] != "message":
            return None
        agent_id = bytes(message["data"]).decode(errors="replace")
        # What is there now, not what was when the message was sent: the last write wins wherever messages meet.
        raw = await self.raw(agent_id)
        return None if raw is None else self._read(agent_id, raw)

    def _read(self, agent_id: str, raw: bytes) -> StoredPolicy | None:
        try:
            entry = StoredPolicy.read(raw)
        except PolicyError as error:
            self._malformed.warning("ignoring the policy of %.200r in Redis: %.300s", agent_id, error)
            return None
        if entry.agent_id != agent_id:
            self._malformed.warning(
                "ignoring the policy under %.200r in Redis: it says to be of %.200r", agent_id, entry.agent_id
            )
            return None
        return entry


def _serialised(message: AgentPolicyMessage) -> bytes:
    return message.SerializeToString(deterministic=True)
