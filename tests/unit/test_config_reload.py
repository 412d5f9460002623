"""Edits of the configuration file: what goes live, what waits, what is refused; and how they are noticed."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from recursant.config.follow import ReloadCounter, watch_config
from recursant.config.live import LIVE_LIMITS, LIVE_SECTIONS, live_onto, needs_restart
from recursant.config.load import ConfigError, parse_config
from recursant.config.model import Config
from recursant.config.reload import Edit, Outcome, Reloader
from recursant.config.watch import ConfigWatch
from xds_server.resource import ROUTE
from xds_server.resources.build import build

PATIENCE_S = 20.0  # against hanging only


def read(text: str) -> Config | ConfigError:
    try:
        return parse_config(text, "r.yaml").config
    except ConfigError as error:
        return error


def good(text: str) -> Config:
    return parse_config(text, "r.yaml").config


START = "agents: [{agent_id: a}]\n"
# What `recursant up` merges in: a file never says so.
MERGED = good("gateway: {port: 9999}\nredis: {url: 'redis://:secret@h/0'}\n" + START)

LIVE = {
    "agents": "agents: [{agent_id: a, priority: 9}]\n",
    "paths": START + "paths: [{path: /new, agent_id: a}]\n",
    "routing.timeout_ms": START + "routing: {timeout_ms: 1000}\n",
    "routing.default_fallback": START + "routing: {default_fallback: reject}\n",
    "routing.weights.queue": START + "routing: {weights: {queue: 0.5}}\n",
    "routing.weights.profile": START + "routing: {weights: {profile: adaptive}}\n",
    "routing.candidates": START + "routing: {candidates: 2}\n",
    "admission.kv_water_mark": START + "admission: {kv_water_mark: 0.5}\n",
    "admission.ageing_ms": START + "admission: {ageing_ms: 10}\n",
    "admission.slot_shares.low": START + "admission: {slot_shares: {low: 0.2}}\n",
    "admission.rules.report_words": START + "admission: {rules: {report_words: []}}\n",
    "limits.agent_meta_bytes": START + "limits: {agent_meta_bytes: 100}\n",
    "limits.session_id_bytes": START + "limits: {session_id_bytes: 100}\n",
    "limits.request_id_bytes": START + "limits: {request_id_bytes: 100}\n",
    "limits.held_requests": START + "limits: {held_requests: 3}\n",
}
WAITING = {
    "gateway.port": START + "gateway: {port: 1234}\n",
    "api.token": START + "api: {token: very-secret}\n",
    "redis.url": START + "redis: {url: 'redis://other'}\n",
    "limits.body_bytes": START + "limits: {body_bytes: 2048}\n",
    "limits.workers": START + "limits: {workers: 3}\n",
    "workers": START + "workers: [{host: h}]\n",
    "families": START + "families: [{pattern: x, family: y}]\n",
    "extproc.message_timeout_ms": START + "extproc: {message_timeout_ms: 100}\n",
}
BAD = (
    "agents: [{agent_id: a, priority: -1}]\n",
    START + "paths: [{path: /new, agent_id: nobody}]\n",
    START + "admission: {kv_water_mark: 2}\nrouting: {timeout_ms: 77}\n",
    START + "admision: {}\n",
    "agents: [\n",
    "\t",
)


@pytest.mark.parametrize("field", LIVE)
def test_what_goes_live(field: str) -> None:
    edit = Reloader(MERGED, good(START)).take(good(LIVE[field]))
    assert (edit.outcome, edit.live, edit.restart) == (Outcome.APPLIED, (field,), ())
    # What was merged in at the start stays.
    assert edit.running.gateway == MERGED.gateway
    assert edit.running.redis == MERGED.redis
    assert edit.lines("r.yaml") == [f"r.yaml: in force now: {field}"]


@pytest.mark.parametrize("field", WAITING)
def test_what_needs_a_restart_is_named_and_not_applied(field: str) -> None:
    reloader = Reloader(MERGED, good(START))
    edit = reloader.take(good(WAITING[field]))
    assert (edit.outcome, edit.live, edit.restart) == (Outcome.WAITS, (), (field,))
    assert edit.running == MERGED == reloader.running
    # By name only: a value may be a secret.
    assert edit.lines("r.yaml") == [f"r.yaml: needs a restart: {field}"]


@pytest.mark.parametrize("field", LIVE)
def test_what_goes_live_touches_no_listener_no_filter_and_no_cluster(field: str) -> None:
    # Another listener would drain the connections of the one before.
    def fixed(config: Config) -> dict[tuple[str, str], bytes]:
        found = build(config, ())
        return {(each.type_url, each.name): each.body for each in found if each.type_url != ROUTE}

    assert fixed(live_onto(MERGED, good(LIVE[field]))) == fixed(MERGED)


def test_every_key_is_one_or_the_other() -> None:
    limits = {f"limits.{name}" for name in Config.model_fields["limits"].default.model_dump()}
    live = {field for field in LIVE if field.startswith("limits.")}
    assert live == {f"limits.{name}" for name in LIVE_LIMITS}
    assert {field.split(".")[0] for field in LIVE} == {*LIVE_SECTIONS, "limits"}
    assert limits - live == {
        "limits.body_bytes",
        "limits.body_timeout_ms",
        "limits.idle_timeout_ms",
        "limits.workers",
    }


def test_both_kinds_in_one_edit() -> None:
    reloader = Reloader(MERGED, good(START))
    edit = reloader.take(good(LIVE["admission.kv_water_mark"] + "gateway: {port: 1}\n"))
    assert edit.outcome is Outcome.APPLIED
    assert edit.lines("f") == ["f: in force now: admission.kv_water_mark", "f: needs a restart: gateway.port"]
    assert edit.running.gateway.port == 9999
    # It still needs it at the next edit, until it is taken back.
    assert reloader.take(good(START + "gateway: {port: 1}\n")).restart == ("gateway.port",)
    assert reloader.take(good(START)).outcome is Outcome.UNCHANGED


def test_a_refused_edit_names_line_field_value_and_what_is_allowed() -> None:
    edit = Reloader(MERGED, good(START)).take(read(START + "admission:\n  kv_water_mark: 2\n"))
    assert edit.lines("r.yaml") == [
        "r.yaml: the edit is refused, the configuration before it stays",
        "r.yaml:3: admission.kv_water_mark: out of range, got 2; allowed: a number from 0.05 to 1",
    ]


def test_without_a_file_of_the_start_the_first_good_look_is_it() -> None:
    reloader = Reloader(MERGED, None)
    assert reloader.take(read("\t")).outcome is Outcome.REFUSED
    assert reloader.take(good(START)).outcome is Outcome.UNCHANGED
    assert reloader.take(good(WAITING["gateway.port"])).restart == ("gateway.port",)


def test_many_names_are_cut() -> None:
    lines = Edit(Outcome.APPLIED, MERGED, live=tuple(f"f{n}" for n in range(15))).lines("r.yaml")
    assert lines == [f"r.yaml: in force now: {', '.join(f'f{n}' for n in range(12))} and 3 more"]


@given(st.lists(st.sampled_from([START, *LIVE.values(), *WAITING.values(), *BAD]), max_size=8))
def test_the_last_good_edit_is_in_force_as_far_as_it_is_live_and_a_bad_one_changes_nothing(texts: list[str]) -> None:
    reloader = Reloader(MERGED, good(START))
    expected, restart = MERGED, ()
    for text in texts:
        found = read(text)
        edit = reloader.take(found)
        assert (edit.outcome is Outcome.REFUSED) is isinstance(found, ConfigError)
        if isinstance(found, Config):
            expected, restart = live_onto(MERGED, found), needs_restart(good(START), found)
            assert edit.restart == restart
        else:
            assert edit.problems
            assert (edit.live, edit.restart) == ((), ())
        assert edit.running == reloader.running == expected


# --- noticing ---


class Watched:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "r.yaml"
        self.file.write_text(START)
        self.edits: list[Edit] = []

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator["Watched"]:
        watch = ConfigWatch(self.file, Reloader(MERGED, good(START)), self.edits.append)
        task = asyncio.create_task(watch.run())
        try:
            yield self
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def outcomes(self, count: int) -> list[Outcome]:
        await until(lambda: len(self.edits) >= count)
        return [edit.outcome for edit in self.edits]

    def replace(self, text: str) -> None:
        """As editors do: a new file takes the old one's name."""
        new = self.file.with_name("new")
        new.write_text(text)
        new.replace(self.file)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nobody here has an event
            await asyncio.sleep(0.01)


async def test_edits_are_noticed_however_they_are_made(tmp_path: Path) -> None:
    async with Watched(tmp_path).watching() as watched:
        watched.file.write_text(LIVE["paths"])
        assert await watched.outcomes(1) == [Outcome.APPLIED]
        watched.replace(BAD[0])
        assert (await watched.outcomes(2))[1] is Outcome.REFUSED
        assert watched.edits[1].problems[0].line == 1
        watched.file.unlink()
        assert (await watched.outcomes(3))[2] is Outcome.REFUSED
        assert "no such file" in str(watched.edits[2].problems[0])
        watched.replace(START)
        assert (await watched.outcomes(4))[3] is Outcome.APPLIED
        os.utime(watched.file, ns=(1, 1))
        assert (await watched.outcomes(5))[4] is Outcome.UNCHANGED


async def test_a_link_that_turns_to_another_folder_is_an_edit(tmp_path: Path) -> None:
    # As Kubernetes mounts a ConfigMap: r.yaml -> ..data/r.yaml, ..data -> a folder of its own for each version.
    for name, text in (("one", START), ("two", LIVE["paths"])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "r.yaml").write_text(text)
    watched = Watched(tmp_path)
    watched.file.unlink()
    (tmp_path / "..data").symlink_to("one")
    watched.file.symlink_to("..data/r.yaml")
    async with watched.watching():
        (tmp_path / "turning").symlink_to("two")
        (tmp_path / "turning").replace(tmp_path / "..data")
        assert await watched.outcomes(1) == [Outcome.APPLIED]
        assert watched.edits[0].live == ("paths",)


async def test_what_changed_between_the_start_and_the_first_look_is_not_missed(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.replace(LIVE["paths"])
    async with watched.watching():
        assert await watched.outcomes(1) == [Outcome.APPLIED]


async def test_a_service_counts_logs_and_applies(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "r.yaml"
    file.write_text(START)
    registry, applied = CollectorRegistry(), []
    task = asyncio.create_task(watch_config(file, MERGED, registry, applied.append))

    def count(outcome: str) -> float | None:
        return registry.get_sample_value("recursant_config_reloads_total", {"outcome": outcome})

    file.write_text(BAD[0])
    await until(lambda: count("refused") == 1)
    assert applied == []
    assert "agents[0].priority: out of range, got -1" in caplog.text
    file.write_text(LIVE["admission.kv_water_mark"])
    await until(lambda: count("applied") == 1)
    assert [edit.live for edit in applied] == [("admission.kv_water_mark",)]
    assert "in force now: admission.kv_water_mark" in caplog.text
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert count("unchanged") == count("needs_restart") == 0


def test_a_restart_that_is_needed_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    counter: Any = ReloadCounter(CollectorRegistry(), "r.yaml")
    counter.edited(Edit(Outcome.APPLIED, MERGED, live=("paths",)))
    counter.edited(Edit(Outcome.WAITS, MERGED, restart=("gateway.port",)))
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
