"""The policies in force: what was applied, over what the configuration file says.

The file is the floor. A policy that is applied takes the place of the file's; one that is deleted hides it, until it is
applied again. Nothing of the file is written to Redis, so an edit of the file takes effect wherever nothing was
applied. Without Redis the file's policies are in force, and those that this process knew when Redis went away.

Redis is right about what it has. What it lacks was lost, and is written again: an entry leaves the hash only as a mark
of a deletion that is older than `MARKS_KEPT_MS`, when the hash is full.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import PolicyError, content_version
from recursant.store.exchange import StoreError
from recursant.store.policies import Away, Changed, FullError, Loaded, PolicyStore, StoredPolicy

# Writers that meet on one agent more often than this in one write are told to try again.
_ATTEMPTS: Final = 20
# A deletion stays marked for this long at the least: 7 days. Whoever was away for less hears of it.
MARKS_KEPT_MS: Final = 7 * 24 * 3_600 * 1_000
# Agents that one line of the log names.
_MOST_NAMED: Final = 12
# Marks that leave at one time, the oldest first, so that not every new agent makes room for itself.
MARKS_PURGED: Final = 100

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyInForce:
    """A policy, and where it comes from.

    Attributes:
        policy: what is in force.
        version: of its content.
        source: `file`, or `applied` through the control API.
        set_by: who applied it; empty for the file's.
        set_at_ms: when, Unix time; 0 for the file's.
    """

    policy: AgentPolicy
    version: str
    source: Literal["file", "applied"]
    set_by: str = ""
    set_at_ms: int = 0


class VersionConflictError(Exception):
    """The policy is not the one that the writer has seen.

    Attributes:
        current: the version in force; None where there is no such policy.
    """

    def __init__(self, agent_id: str, current: str | None) -> None:
        now = "does not exist" if current is None else f"is at version {current}"
        super().__init__(f"policy {agent_id!r} {now}: somebody else has changed it; read it again")
        self.current = current


@dataclass(frozen=True, slots=True)
class Condition:
    """What must be in force for a write to happen.

    Attributes:
        versions: one of these; None for anything. Empty: some policy, whatever its version.
        absent: nothing.
    """

    versions: frozenset[str] | None = None
    absent: bool = False

    def allows(self, current: PolicyInForce | None) -> bool:
        """Is it so?"""
        if self.absent:
            return current is None
        if self.versions is None:
            return True
        return current is not None and (not self.versions or current.version in self.versions)


ALWAYS: Final = Condition()


class PolicyDirectory:
    """Every policy in force, kept up to date by `run`.

    Args:
        from_file: the policies of the configuration file.
        store: where applied policies are; None without Redis.
        wall_clock: Unix time in seconds.
        kept: what an earlier run knew to be applied, for a Redis that has lost it.
    """

    def __init__(
        self,
        from_file: Sequence[AgentPolicy],
        store: PolicyStore | None,
        *,
        wall_clock: Callable[[], float] = time.time,
        kept: Mapping[str, StoredPolicy] | None = None,
    ) -> None:
        self._store = store
        self._wall_clock = wall_clock
        self._file = {policy.agent_id: policy for policy in from_file}
        self._applied: dict[str, StoredPolicy] = dict(kept or {})
        # Of those, the ones that this process has not seen in Redis itself.
        self._hearsay = frozenset(self._applied)
        self._in_force: dict[str, PolicyInForce] = {}
        self._on_change: list[Callable[[], None]] = []
        self._on_applied: list[Callable[[], None]] = []
        self._loaded = store is None
        self._merge()

    @property
    def in_force(self) -> Mapping[str, PolicyInForce]:
        """By agent id."""
        return self._in_force

    @property
    def policies(self) -> tuple[AgentPolicy, ...]:
        """Those in force, by agent id."""
        return tuple(self._in_force[agent_id].policy for agent_id in sorted(self._in_force))

    @property
    def loaded(self) -> bool:
        """The applied ones are known, as far as they can be: also true where Redis was found away."""
        return self._loaded

    @property
    def applied(self) -> Mapping[str, StoredPolicy]:
        """Everything that was applied or deleted, as far as it is known; not what the file says."""
        return self._applied

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Be told, on the event loop, whenever what is in force has changed."""
        self._on_change.append(on_change)

    def subscribe_applied(self, on_applied: Callable[[], None]) -> None:
        """Be told, on the event loop, whenever `applied` has changed."""
        self._on_applied.append(on_applied)

    def set_file(self, from_file: Sequence[AgentPolicy]) -> None:
        """The configuration file says something else now. What was applied or deleted stays so."""
        now = {policy.agent_id: policy for policy in from_file}
        hidden = sorted(name for name in now.keys() & self._applied.keys() if now[name] != self._file.get(name))
        if hidden:
            more = f" and {len(hidden) - _MOST_NAMED} more" if len(hidden) > _MOST_NAMED else ""
            names = ", ".join(hidden[:_MOST_NAMED]) + more
            _log.warning("what the file says now of %s does not count: it was applied or deleted", names)
        self._file = now
        self._merge()

    async def run(self) -> None:
        """Follow Redis until cancelled."""
        if self._store is None:
            await asyncio.Event().wait()
            return
        try:
            async with contextlib.aclosing(self._store.watch()) as events:
                async for event in events:
                    match event:
                        case Changed(entry):
                            self._set_applied({**self._applied, entry.agent_id: entry})
                        case Loaded():
                            await self._take(self._store, event)
                        case Away(reason):
                            _log.warning("going on with the policies that are known: %s", reason)
                    self._loaded = True
                    self._merge()
        finally:
            await self._store.close()

    async def put(self, policy: AgentPolicy, *, set_by: str, condition: Condition = ALWAYS) -> PolicyInForce:
        """Apply a policy.

        Raises:
            VersionConflictError: the condition does not hold.
            StoreError: Redis is away; the policy may not have been applied.
        """
        entry = StoredPolicy.of(policy, set_by=set_by, set_at_ms=self._now_ms())
        await self._write(entry, condition)
        return self._in_force[policy.agent_id]

    async def delete(self, agent_id: str, *, set_by: str, condition: Condition = ALWAYS) -> None:
        """Take a policy away, also one of the file. Its requests are then those of an unknown agent.

        Raises:
            VersionConflictError: the condition does not hold.
            StoreError: Redis is away; the policy may still be in force.
        """
        await self._write(StoredPolicy.gone(agent_id, set_by=set_by, set_at_ms=self._now_ms()), condition)

    async def _write(self, entry: StoredPolicy, condition: Condition) -> None:
        if self._store is None:
            raise StoreError("no redis.url is configured")
        for _ in range(_ATTEMPTS):
            raw = await self._store.raw(entry.agent_id)
            current = self._resolve(entry.agent_id, _readable(raw))
            if not condition.allows(current):
                raise VersionConflictError(entry.agent_id, None if current is None else current.version)
            try:
                written = await self._store.swap(raw, entry)
            except FullError:
                if not await self._purge(self._store):
                    raise
                continue
            if written:
                self._set_applied({**self._applied, entry.agent_id: entry})
                self._merge()
                return
        raise StoreError("too many writers change this policy at one time")

    async def _take(self, store: PolicyStore, loaded: Loaded) -> None:
        lost = self._applied.keys() - loaded.entries.keys() - loaded.unreadable
        if loaded.entries or loaded.unreadable:
            lost = {agent_id for agent_id in lost if not self._may_have_been_purged(agent_id)}
        self._hearsay = frozenset()
        kept = {agent_id: self._applied[agent_id] for agent_id in self._applied.keys() & loaded.unreadable}
        for agent_id in sorted(lost):
            entry = self._applied[agent_id]
            kept[agent_id] = entry
            with contextlib.suppress(StoreError):
                if await store.swap(None, entry):
                    _log.warning("the policy of %s was lost in Redis: written again", agent_id)
        self._set_applied({**kept, **loaded.entries})

    def _may_have_been_purged(self, agent_id: str) -> bool:
        """Is it a deletion that Redis need not remember, or a policy of which this process may have missed one?"""
        entry = self._applied[agent_id]
        if entry.set_at_ms > self._now_ms() - MARKS_KEPT_MS:
            return False
        return agent_id in self._hearsay if entry.policy is not None else agent_id not in self._file

    async def _purge(self, store: PolicyStore) -> bool:
        """Make room in a full hash; False where there is none to make.

        The oldest deletions go, once they are old enough for everybody to have heard of them. Those of the file's
        agents stay: without its mark the file's policy would be back.
        """
        oldest = self._now_ms() - MARKS_KEPT_MS
        loaded = await store.load()
        marks = [each for each in loaded.entries.values() if each.policy is None and each.set_at_ms < oldest]
        marks = [each for each in marks if each.agent_id not in self._file]
        marks.sort(key=lambda each: (each.set_at_ms, each.agent_id))
        purged = await store.forget(marks[:MARKS_PURGED])
        if purged:
            _log.info("forgot the %d oldest deletions of policies: there are too many", purged)
        return purged > 0

    def _set_applied(self, applied: dict[str, StoredPolicy]) -> None:
        if applied == self._applied:
            return
        self._applied = applied
        for on_applied in self._on_applied:
            on_applied()

    def _merge(self) -> None:
        names = self._file.keys() | self._applied.keys()
        found = {name: self._resolve(name, self._applied.get(name)) for name in names}
        merged = {name: each for name, each in sorted(found.items()) if each is not None}
        if merged == self._in_force:
            return
        self._in_force = merged
        for on_change in self._on_change:
            on_change()

    def _resolve(self, agent_id: str, entry: StoredPolicy | None) -> PolicyInForce | None:
        if entry is None:
            policy = self._file.get(agent_id)
            return None if policy is None else PolicyInForce(policy, content_version(policy), "file")
        if entry.policy is None:
            return None
        return PolicyInForce(entry.policy, entry.version, "applied", entry.set_by, entry.set_at_ms)

    def _now_ms(self) -> int:
        return round(self._wall_clock() * 1_000)


def _readable(raw: bytes | None) -> StoredPolicy | None:
    if raw is None:
        return None
    try:
        return StoredPolicy.read(raw)
    except PolicyError:
        # Whatever it is, a new policy may take its place.
        return None
