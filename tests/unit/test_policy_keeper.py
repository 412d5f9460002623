"""What the control plane keeps of the policies on its own disk, and what comes of it after a loss."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis_server import RedisServer

from recursant.agents.directory import MARKS_KEPT_MS, MARKS_PURGED, PolicyDirectory
from recursant.agents.policy import AgentPolicy
from recursant.store import policies as policies_module
from recursant.store.exchange import StoreError
from recursant.store.keys import AGENTS
from recursant.store.policies import PolicyStore, StoredPolicy
from xds_server import policy_keeper
from xds_server.policy_keeper import KEPT_FILE, PolicyKeeper, dump_entries, parse_entries

PATIENCE_S = 20.0  # against hanging only
NOW_MS = 1_700_000_000_000
CHAT = AgentPolicy(agent_id="chat", model_family="qwen", priority=10)
VOICE = AgentPolicy(agent_id="voice", model_family="whisper")


def entry(policy: AgentPolicy, age_ms: int = 0) -> StoredPolicy:
    return StoredPolicy.of(policy, set_by="ann", set_at_ms=NOW_MS - age_ms)


def mark(agent_id: str, age_ms: int = 0) -> StoredPolicy:
    return StoredPolicy.gone(agent_id, set_by="ann", set_at_ms=NOW_MS - age_ms)


def by_id(*entries: StoredPolicy) -> dict[str, StoredPolicy]:
    return {each.agent_id: each for each in entries}


@contextlib.asynccontextmanager
async def directory(
    url: str, *from_file: AgentPolicy, kept: Mapping[str, StoredPolicy] | None = None
) -> AsyncIterator[PolicyDirectory]:
    found = PolicyDirectory(from_file, PolicyStore(url), wall_clock=lambda: NOW_MS / 1_000, kept=kept)
    task = asyncio.create_task(found.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not found.loaded:  # noqa: ASYNC110 - nobody here has an event
                await asyncio.sleep(0.01)
        yield found
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def in_redis(url: str) -> dict[str, StoredPolicy]:
    store = PolicyStore(url)
    try:
        return (await store.load()).entries
    finally:
        await store.close()


async def write(url: str, *entries: StoredPolicy) -> None:
    async with Redis.from_url(url) as redis:
        await redis.hset(AGENTS, mapping={each.agent_id: each.raw for each in entries})  # type: ignore[misc]


# --- the file ---


@given(
    st.dictionaries(
        st.from_regex(r"\A[a-z][a-z0-9._-]{0,9}\Z"),
        st.tuples(st.booleans(), st.integers(0, 1_000), st.integers(0, 2**40), st.text(max_size=20)),
        max_size=8,
    )
)
def test_what_is_written_is_read(agents: dict[str, tuple[bool, int, int, str]]) -> None:
    entries = by_id(
        *(
            StoredPolicy.gone(name, set_by=who, set_at_ms=at)
            if gone
            else StoredPolicy.of(AgentPolicy(agent_id=name, priority=priority), set_by=who, set_at_ms=at)
            for name, (gone, priority, at, who) in agents.items()
        )
    )
    assert parse_entries(dump_entries(entries)) == (entries, [])


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format":2,"entries":[]}', '{"format":1,"entries":{}}', "[" * 9_999]
)
def test_a_file_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parse_entries(text)


def test_an_entry_that_cannot_be_used_costs_only_itself() -> None:
    document = json.loads(dump_entries(by_id(entry(CHAT), entry(VOICE), mark("gone"))))
    chat, gone, voice = document["entries"]
    bad: list[Any] = [
        chat | {"policy": chat["policy"] | {"priority": -1}},
        chat | {"agent_id": "other"},
        gone | {"agent_id": "not a name"},
        gone | {"set_at_ms": "late"},
        gone | {"set_by": None},
        [],
    ]
    entries, problems = parse_entries(json.dumps({"format": 1, "entries": [*bad, voice]}))
    assert entries == by_id(entry(VOICE))
    assert [each.partition(":")[0] for each in problems] == [f"entries[{number}]" for number in range(len(bad))]
    assert "priority" in problems[0]


def test_too_many_entries_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = dump_entries(by_id(entry(CHAT), entry(VOICE)))
    monkeypatch.setattr(policy_keeper, "MAX_POLICIES", 1)
    with pytest.raises(ValueError, match="2 entries, allowed are 1"):
        parse_entries(text)


async def test_changes_are_written_together_and_the_last_one_at_the_end(tmp_path: Path) -> None:
    keeper = PolicyKeeper(tmp_path / "state")
    assert keeper.restore() == {}
    now: dict[str, StoredPolicy] = {}
    task = asyncio.create_task(keeper.run(lambda: now))
    for each in (entry(CHAT), entry(VOICE)):
        now[each.agent_id] = each
        keeper.changed()
    file = tmp_path / "state" / KEPT_FILE
    async with asyncio.timeout(PATIENCE_S):
        while not file.exists():  # noqa: ASYNC110 - a file has no event
            await asyncio.sleep(0.02)
    assert PolicyKeeper(tmp_path / "state").restore() == now
    now["voice"] = mark("voice")
    keeper.changed()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert PolicyKeeper(tmp_path / "state").restore() == by_id(entry(CHAT), mark("voice"))
    assert [path.name for path in (tmp_path / "state").iterdir()] == [KEPT_FILE]


async def test_a_spoilt_file_is_said_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / KEPT_FILE).write_text("{")
    assert PolicyKeeper(tmp_path).restore() == {}
    assert "cannot be used" in caplog.text


async def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    keeper = PolicyKeeper(tmp_path / "file")
    keeper.changed()
    task = asyncio.create_task(keeper.run(dict))
    async with asyncio.timeout(PATIENCE_S):
        while "cannot be kept" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- what Redis and the file know ---


async def test_an_empty_redis_gets_back_what_was_kept_however_old(redis_server: RedisServer) -> None:
    kept = by_id(entry(CHAT, age_ms=10 * MARKS_KEPT_MS), mark("voice", age_ms=10 * MARKS_KEPT_MS))
    async with directory(redis_server.url, VOICE, kept=kept) as one:
        assert one.policies == (CHAT,)
        assert one.in_force["chat"].source == "applied"
    assert await in_redis(redis_server.url) == kept


async def test_what_redis_has_is_right(redis_server: RedisServer) -> None:
    newer = entry(CHAT.model_copy(update={"priority": 3}), age_ms=5)
    await write(redis_server.url, newer, mark("voice"))
    # Even where the file was written later: Redis is what everybody shares.
    async with directory(redis_server.url, kept=by_id(entry(CHAT), entry(VOICE))) as one:
        assert [each.priority for each in one.policies] == [3]
    assert await in_redis(redis_server.url) == by_id(newer, mark("voice"))


async def test_a_redis_that_lost_a_part_gets_that_back(redis_server: RedisServer) -> None:
    await write(redis_server.url, entry(VOICE))
    async with directory(redis_server.url, kept=by_id(entry(CHAT, age_ms=MARKS_KEPT_MS - 1))) as one:
        assert one.policies == (CHAT, VOICE)


async def test_a_policy_that_may_have_been_deleted_meanwhile_does_not_come_back(redis_server: RedisServer) -> None:
    await write(redis_server.url, entry(VOICE))
    # Its deletion may have been forgotten already.
    async with directory(redis_server.url, kept=by_id(entry(CHAT, age_ms=MARKS_KEPT_MS + 1))) as one:
        assert one.policies == (VOICE,)
        assert "chat" not in one.applied
    assert set(await in_redis(redis_server.url)) == {"voice"}


async def test_while_redis_is_away_what_was_kept_is_in_force(redis_server: RedisServer) -> None:
    redis_server.kill()
    async with directory(redis_server.url, VOICE, kept=by_id(entry(CHAT))) as one:
        assert one.policies == (CHAT, VOICE)


# --- a full hash ---


async def test_the_oldest_deletions_make_room(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies_module, "MAX_POLICIES", 6)
    old = [mark(f"old-{number}", age_ms=MARKS_KEPT_MS + 10 - number) for number in range(3)]
    floor = mark("voice", age_ms=9 * MARKS_KEPT_MS)
    await write(redis_server.url, *old, floor, mark("young", age_ms=MARKS_KEPT_MS - 1), entry(CHAT, age_ms=10**12))
    monkeypatch.setattr("recursant.agents.directory.MARKS_PURGED", 2)
    async with directory(redis_server.url, VOICE) as one, directory(redis_server.url, VOICE) as two:
        await one.put(AgentPolicy(agent_id="new"), set_by="ann")
        # The two oldest went; not the mark that hides the file's policy, nor the young one, nor a policy.
        assert set(await in_redis(redis_server.url)) == {"old-2", "voice", "young", "chat", "new"}
        assert [each.agent_id for each in one.policies] == ["chat", "new"]
        async with asyncio.timeout(PATIENCE_S):
            while set(two.applied) != {"old-2", "voice", "young", "chat", "new"}:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    # Nobody writes back what was forgotten.
    assert set(await in_redis(redis_server.url)) == {"old-2", "voice", "young", "chat", "new"}


async def test_without_old_deletions_a_full_hash_stays_full(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policies_module, "MAX_POLICIES", 2)
    await write(redis_server.url, mark("young", age_ms=MARKS_KEPT_MS - 1), entry(CHAT))
    async with directory(redis_server.url) as one:
        with pytest.raises(StoreError, match="2 policies already"):
            await one.put(VOICE, set_by="ann")
        # What is there can still be changed.
        await one.put(CHAT.model_copy(update={"priority": 1}), set_by="ann")
        assert one.in_force["chat"].policy.priority == 1


def test_a_purge_is_much_smaller_than_the_table() -> None:
    assert MARKS_PURGED * 10 <= policies_module.MAX_POLICIES
