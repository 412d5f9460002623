"""What a reporting worker is told by its environment, its annotations and vLLM's command line."""

import asyncio
import logging

import pytest
from http_kit import http_server

from recursant.worker.engine_look import EngineLook
from recursant.worker.own_address import complete_address
from recursant.worker.settings import (
    WorkerSettings,
    capacity_of,
    from_environment,
    listening,
    parse_annotations,
)

REDIS = {"RECURSANT_REDIS_URL": "redis://:secret@redis:6379/0"}


def told(environment: dict[str, str], command: str = "vllm serve m") -> WorkerSettings:
    found = from_environment(REDIS | environment, hostname="node-7", command_line=command.split())
    assert found is not None
    return found


def test_without_a_place_to_report_to_there_is_nothing_to_do() -> None:
    assert from_environment({"RECURSANT_WORKER_ID": "w1"}, hostname="node-7") is None


def test_most_of_it_need_not_be_said() -> None:
    assert told({}) == WorkerSettings(
        worker_id="node-7-8000",
        address=":8000",
        engine_url="http://127.0.0.1:8000",
        redis_url="redis://:secret@redis:6379/0",
    )


def test_everything_can_be_said() -> None:
    environment = {
        "RECURSANT_API": "http://control:8001",
        "RECURSANT_WORKER_ID": "gpu-7",
        "RECURSANT_WORKER_ADDRESS": "gpu-7.example:443",
        "RECURSANT_ENGINE_URL": "https://127.0.0.1:8443",
        "RECURSANT_MODEL_FAMILY": "qwen",
        "RECURSANT_EXCLUSIVE": "true",
        "RECURSANT_CAPACITY_TOKENS": "128000",
        "RECURSANT_MAX_QUEUE": "32",
        "RECURSANT_GPUS": "GPU-1",
        "CUDA_VISIBLE_DEVICES": "3",
        "RECURSANT_REPORT_INTERVAL_MS": "500",
        "VLLM_API_KEY": "key",
    }
    assert told(environment) == WorkerSettings(
        worker_id="gpu-7",
        address="gpu-7.example:443",
        engine_url="https://127.0.0.1:8443",
        redis_url="redis://:secret@redis:6379/0",
        api_url="http://control:8001",
        family="qwen",
        exclusive=True,
        capacity_tokens=128_000,
        max_queue=32,
        gpus="GPU-1",
        interval_ms=500,
        api_key="key",
    )


def test_cuda_says_which_devices_are_meant() -> None:
    assert told({"CUDA_VISIBLE_DEVICES": "2,3"}).gpus == "2,3"


def test_an_address_without_a_port_has_vllms() -> None:
    assert told({"RECURSANT_WORKER_ADDRESS": "gpu-7"}, "vllm serve m --port 8101").address == "gpu-7:8101"


@pytest.mark.parametrize(
    ("command", "address", "engine"),
    [
        ("vllm serve m --port 8101", ":8101", "http://127.0.0.1:8101"),
        ("vllm serve m --port=8101 --host=0.0.0.0", ":8101", "http://127.0.0.1:8101"),
        ("vllm serve m --host 10.0.0.7", "10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("vllm serve m --host :: --port 9", ":9", "http://127.0.0.1:9"),
        ("vllm serve m --host fd00::7", "[fd00::7]:8000", "http://[fd00::7]:8000"),
        ("vllm serve m --ssl-certfile c.pem --ssl-keyfile k.pem", ":8000", "https://127.0.0.1:8000"),
        ("vllm serve m --port", ":8000", "http://127.0.0.1:8000"),
        ("vllm serve m --port many", ":8000", "http://127.0.0.1:8000"),
    ],
)
def test_where_vllm_listens_is_read_from_its_command_line(command: str, address: str, engine: str) -> None:
    found = told({}, command)
    assert (found.address, found.engine_url) == (address, engine)


def test_the_last_of_two_flags_counts() -> None:
    assert listening(["--port", "1", "--port", "2"]) == ("", 2)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("RECURSANT_REDIS_URL", "http://x"),
        ("RECURSANT_REDIS_URL", "redis://"),
        # A password that is not quoted.
        ("RECURSANT_REDIS_URL", "redis://:pass/word@redis:6379"),
        ("RECURSANT_API", "control:8001"),
        ("RECURSANT_API", "http://control:many"),
        ("RECURSANT_WORKER_ID", "a b"),
        ("RECURSANT_WORKER_ID", "x" * 129),
        ("RECURSANT_WORKER_ADDRESS", "0.0.0.0:8000"),
        ("RECURSANT_WORKER_ADDRESS", ":99999"),
        ("RECURSANT_MODEL_FAMILY", "a,b"),
        ("RECURSANT_EXCLUSIVE", "perhaps"),
        ("RECURSANT_CAPACITY_TOKENS", "1e6"),
        ("RECURSANT_CAPACITY_TOKENS", "0"),
        ("RECURSANT_MAX_QUEUE", "-1"),
        ("RECURSANT_REPORT_INTERVAL_MS", "0"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(ValueError, match=variable):
        told({variable: value})


def test_passwords_are_not_shown() -> None:
    settings = told({"VLLM_API_KEY": "key-123"})
    assert "secret" not in f"{settings!r} {settings}"
    assert "key-123" not in repr(settings)
    with pytest.raises(ValueError, match="RECURSANT_REDIS_URL") as caught:
        told({"RECURSANT_REDIS_URL": "http://:hunter2@redis"})
    assert "hunter2" not in str(caught.value)


# As the downward API writes metadata.annotations.
ANNOTATIONS = """\
kubernetes.io/config.seen="2026-11-29T18:00:00.000000000Z"
note="it said \\"hello\\" = \\\\ fine"
recursant.io/instance-capacity="128000"
volcano.sh/instance-capacity="64000"
rubbish
"""


def test_reads_a_downward_api_file() -> None:
    found = parse_annotations(ANNOTATIONS)
    assert found["note"] == 'it said "hello" = \\ fine'
    assert found["recursant.io/instance-capacity"] == "128000"
    assert "rubbish" not in found


@pytest.mark.parametrize(
    ("said", "annotations", "capacity"),
    [
        ("", "", None),
        ("", ANNOTATIONS, 128_000),
        ("", 'volcano.sh/instance-capacity="64000"', 64_000),
        ("1000", ANNOTATIONS, 1_000),
    ],
)
def test_the_declared_capacity(said: str, annotations: str, capacity: int | None) -> None:
    assert capacity_of(said, annotations) == capacity


def test_an_annotation_that_is_no_number_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"volcano\.sh/instance-capacity: expected a whole number"):
        capacity_of("", 'volcano.sh/instance-capacity="128k"')


# --- where others reach it ---


@pytest.mark.parametrize(
    ("address", "control_plane", "completed"),
    [
        ("gpu-7:8000", "redis://127.0.0.1:6379", "gpu-7:8000"),
        (":8000", "redis://127.0.0.1:6379/0", "127.0.0.1:8000"),
        (":8000", "rediss://user:pass@localhost", "127.0.0.1:8000"),
        (":8000", "unix:///run/redis.sock", "127.0.0.1:8000"),
        (":8000", "http://127.0.0.1:8001", "127.0.0.1:8000"),
    ],
)
async def test_the_host_is_the_one_that_leads_to_the_control_plane(
    address: str, control_plane: str, completed: str
) -> None:
    found = await complete_address(address, control_plane, logging.getLogger("test"))
    # The loopback address of whichever family "localhost" has here.
    assert found.replace("[::1]", "127.0.0.1") == completed


# --- the look at the engine's server ---


async def one_look(answers: dict[str, tuple[int, bytes]]) -> EngineLook:
    """What is seen of a server that answers so."""
    asked: list[str] = []

    async def answer(path: str, _body: bytes) -> tuple[int, bytes]:
        asked.append(path)
        return answers.get(path, (404, b"{}"))

    async with http_server(answer) as server:
        look = EngineLook(server.url)
        task = asyncio.create_task(look.run())
        async with asyncio.timeout(20):
            while "/health" not in asked or (answers["/health"][0] == 200 and "/v1/models" not in asked):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            # The answer has to be read still.
            await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    return look


async def test_sees_a_server_that_serves_and_its_adapters() -> None:
    listed = (
        b'{"data": [{"id": "base", "parent": null}, {"id": "ad1", "parent": "base"}, {"id": "also", "parent": null}]}'
    )
    look = await one_look({"/health": (200, b""), "/v1/models": (200, listed)})
    assert (look.serving, look.dead, look.models, look.adapters) == (True, 0, ("base", "also"), ("ad1",))


@pytest.mark.parametrize("answer", [(401, b"{}"), (200, b"{"), (200, b"[]"), (200, b'{"data": [7]}')])
async def test_adapters_that_cannot_be_read_are_unknown(answer: tuple[int, bytes]) -> None:
    look = await one_look({"/health": (200, b""), "/v1/models": answer})
    assert (look.serving, look.adapters) == (True, None)


@pytest.mark.parametrize(
    ("answer", "paused"),
    [
        ((200, b'{"is_paused": true}'), True),
        ((200, b'{"is_paused": false}'), False),
        ((200, b'{"is_paused": "true"}'), False),
        ((200, b"["), False),
        ((500, b'{"is_paused": true}'), False),
        # Outside development mode.
        ((404, b'{"detail":"Not Found"}'), False),
    ],
)
async def test_sees_an_engine_that_is_paused(answer: tuple[int, bytes], paused: bool) -> None:
    look = await one_look({"/health": (200, b""), "/is_paused": answer, "/v1/models": (200, b'{"data": []}')})
    assert (look.serving, look.paused) == (True, paused)


async def test_an_adapter_that_cannot_be_reported_is_left_out() -> None:
    listed = b'{"data": [{"id": "base"}, {"id": "a,b", "parent": "base"}, {"id": "ad1", "parent": "base"}]}'
    look = await one_look({"/health": (200, b""), "/v1/models": (200, listed)})
    assert (look.models, look.adapters) == (("base",), ("ad1",))


async def test_a_server_that_speaks_otherwise_serves_and_one_that_is_gone_does_not() -> None:
    async def mumble(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ready\r\n")
        writer.close()

    async with await asyncio.start_server(mumble, "127.0.0.1", 0) as server:
        look = EngineLook(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        task = asyncio.create_task(look.run())
        async with asyncio.timeout(20):
            while not look.serving:  # noqa: ASYNC110 - it tells nobody
                await asyncio.sleep(0.01)
    async with asyncio.timeout(20):
        while look.serving:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    assert look.dead == 0
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_dead_engine_does_not_serve() -> None:
    look = await one_look({"/health": (503, b"")})
    # It never served, so it did not die before our eyes.
    assert (look.serving, look.dead) == (False, 0)
