"""Policies in a real Redis: two writers, losses, floors, and what cannot be read."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest
from redis.asyncio import Redis
from redis_server import RedisServer

from recursant.agents.directory import Condition, PolicyDirectory, VersionConflictError
from recursant.agents.policy import AgentPolicy
from recursant.agents.policy_codec import content_version
from recursant.store.exchange import StoreError
from recursant.store.keys import AGENTS
from recursant.store.policies import PolicyStore, StoredPolicy

PATIENCE_S = 20.0  # against hanging only
CHAT = AgentPolicy(agent_id="chat", model_family="qwen", priority=10)
VOICE = AgentPolicy(agent_id="voice", model_family="whisper")


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nobody here has an event
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def directory(url: str, *from_file: AgentPolicy) -> AsyncIterator[PolicyDirectory]:
    found = PolicyDirectory(from_file, PolicyStore(url), wall_clock=lambda: 1_700_000_000.5)
    task = asyncio.create_task(found.run())
    try:
        await until(lambda: found.loaded)
        yield found
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_an_applied_policy_is_over_the_files_and_reaches_others(redis_server: RedisServer) -> None:
    async with directory(redis_server.url, CHAT) as one, directory(redis_server.url, CHAT) as two:
        assert one.in_force["chat"].source == "file"
        louder = CHAT.model_copy(update={"priority": 15})
        put = await one.put(louder, set_by="ann")
        assert put == one.in_force["chat"]
        assert (put.source, put.set_by, put.set_at_ms) == ("applied", "ann", 1_700_000_000_500)
        await until(lambda: two.in_force["chat"].policy.priority == 15)
        assert two.in_force["chat"] == put
    # A start with an edited file does not take back what was applied.
    async with directory(redis_server.url, CHAT.model_copy(update={"priority": 1}), VOICE) as three:
        assert three.in_force["chat"] == put
        assert three.in_force["voice"].source == "file"


async def test_a_deleted_policy_of_the_file_stays_deleted_until_it_is_applied_again(redis_server: RedisServer) -> None:
    async with directory(redis_server.url, CHAT) as one:
        await one.delete("chat", set_by="ann")
        assert one.in_force == {}
    async with directory(redis_server.url, CHAT) as two:
        assert two.in_force == {}
        await two.put(CHAT, set_by="bob")
        assert two.policies == (CHAT,)


async def test_an_edit_of_the_file_takes_effect_where_nothing_was_applied_or_deleted(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    gone = AgentPolicy(agent_id="gone", model_family="phi")
    async with directory(redis_server.url, CHAT, VOICE, gone) as one:
        louder = CHAT.model_copy(update={"priority": 15})
        await one.put(louder, set_by="ann")
        await one.delete("gone", set_by="ann")
        told: list[int] = []
        one.subscribe(lambda: told.append(len(one.policies)))
        one.set_file([CHAT.model_copy(update={"priority": 1}), gone, VOICE.model_copy(update={"priority": 2})])
        assert one.in_force["chat"].policy == louder
        assert one.in_force["voice"].policy.priority == 2
        assert "gone" not in one.in_force
        # Whoever edits it is told, of those that the edit is about.
        assert "what the file says now of chat does not count: it was applied or deleted" in caplog.text
        one.set_file([gone])
        # What was applied outlives its entry in the file.
        assert one.policies == (louder,)
        assert told == [2, 1]


async def test_two_writers_cannot_overwrite_each_other(redis_server: RedisServer) -> None:
    seen = Condition(frozenset({content_version(CHAT)}))
    async with directory(redis_server.url, CHAT) as one, directory(redis_server.url, CHAT) as two:
        outcomes = await asyncio.gather(
            one.put(CHAT.model_copy(update={"priority": 1}), set_by="ann", condition=seen),
            two.put(CHAT.model_copy(update={"priority": 2}), set_by="bob", condition=seen),
            return_exceptions=True,
        )
        (conflict,) = [each for each in outcomes if isinstance(each, VersionConflictError)]
        (winner,) = [each for each in outcomes if not isinstance(each, BaseException)]
        assert conflict.current == winner.version
        await until(lambda: one.in_force == two.in_force)
        assert one.in_force["chat"] == winner


async def test_writers_without_a_condition_all_get_through(redis_server: RedisServer) -> None:
    async with directory(redis_server.url) as one, directory(redis_server.url) as two:
        policies = [CHAT.model_copy(update={"priority": number}) for number in range(20)]
        await asyncio.gather(*(who.put(each, set_by="x") for each, who in zip(policies, [one, two] * 10, strict=True)))
        await until(lambda: one.in_force == two.in_force)


@pytest.mark.parametrize(
    ("condition", "exists", "allowed"),
    [
        (Condition(absent=True), True, False),
        (Condition(absent=True), False, True),
        (Condition(frozenset()), True, True),
        (Condition(frozenset()), False, False),
        (Condition(frozenset({"other"})), True, False),
        (Condition(), False, True),
    ],
)
async def test_conditions(redis_server: RedisServer, condition: Condition, exists: bool, allowed: bool) -> None:
    async with directory(redis_server.url, *([CHAT] if exists else [])) as one:
        with contextlib.nullcontext() if allowed else pytest.raises(VersionConflictError):
            await one.put(CHAT, set_by="x", condition=condition)


async def test_what_redis_loses_is_written_again(redis_server: RedisServer) -> None:
    async with directory(redis_server.url) as one:
        await one.put(CHAT, set_by="ann")
        await one.delete("voice", set_by="ann")
        redis_server.restart_empty()
        async with directory(redis_server.url, VOICE) as two:
            await until(lambda: two.policies == (CHAT,))
            assert two.in_force["chat"].set_by == "ann"
        assert one.policies == (CHAT,)


async def test_without_redis_what_is_known_stays_and_nothing_can_be_applied(redis_server: RedisServer) -> None:
    async with directory(redis_server.url, VOICE) as one:
        await one.put(CHAT, set_by="ann")
        redis_server.kill()
        with pytest.raises(StoreError):
            await one.put(VOICE, set_by="ann")
        assert one.policies == (CHAT, VOICE)
    alone = PolicyDirectory([VOICE], None)
    assert alone.loaded
    assert alone.policies == (VOICE,)
    with pytest.raises(StoreError, match=r"no redis\.url"):
        await alone.put(CHAT, set_by="x")


async def test_an_entry_that_cannot_be_read_changes_nothing(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with directory(redis_server.url) as one, Redis.from_url(redis_server.url) as redis:
        await one.put(CHAT, set_by="ann")
        bad = StoredPolicy.of(CHAT.model_copy(update={"priority": 5_000}), set_by="eve", set_at_ms=1)
        await redis.hset(AGENTS, "chat", bad.raw)  # type: ignore[arg-type,misc]
        await redis.hset(AGENTS, "voice", StoredPolicy.of(CHAT, set_by="eve", set_at_ms=1).raw)  # type: ignore[arg-type,misc]
        await redis.publish("recursant:agents:events", "chat")
        await until(lambda: "priority" in caplog.text)
        async with directory(redis_server.url) as two:
            assert two.in_force == {}
            # A good one takes its place.
            await two.put(VOICE, set_by="ann")
            assert two.policies == (VOICE,)
        assert one.in_force["chat"].policy == CHAT
