"""One event a line, whatever is logged; no credentials, no unbounded text."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from recursant import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(log_format: str, log: object, level: str = "info") -> list[str]:
    """What `log` (a function of a logger) writes."""
    stream = io.StringIO()
    logs.configure(level, log_format, stream=stream)
    log(logging.getLogger("recursant.test"))  # type: ignore[operator]
    return stream.getvalue().splitlines()


def test_text_has_time_level_name_message_and_details() -> None:
    (line,) = lines("text", lambda log: log.info("listening on %s", "here", extra={"port": 8001}))
    time, rest = line.split(" ", 1)
    assert rest == "INFO recursant.test: listening on here port=8001"
    assert len(time) == len("2026-11-29T15:40:45.123Z")
    assert time.endswith("Z")


def test_json_has_the_same_as_fields() -> None:
    extra = {"port": 8001, "ready": True, "where": ["a"], "level": "not ours"}
    (line,) = lines("json", lambda log: log.warning("listening on %s", "here", extra=extra))
    fields = json.loads(line)
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "warning",
        "logger": "recursant.test",
        "message": "listening on here",
        "port": 8001,
        "ready": True,
        "where": "['a']",
    }


@pytest.mark.parametrize("log_format", logs.FORMATS)
def test_one_event_is_one_line(log_format: str) -> None:
    def log(logger: logging.Logger) -> None:
        try:
            raise RuntimeError("first\nsecond")
        except RuntimeError:
            logger.exception("a\r\nb\u2028c\x1b[31m", extra={"detail": "d\ne"})

    (line,) = lines(log_format, log)
    assert "\x1b" not in line
    assert "first" in line
    assert "RuntimeError" in line


@pytest.mark.parametrize("log_format", logs.FORMATS)
def test_credentials_in_urls_are_masked(log_format: str) -> None:
    def log(logger: logging.Logger) -> None:
        try:
            raise OSError("redis://:hunter2@h:1")
        except OSError:
            logger.exception("cannot reach redis://user:hun/ter2@hunter2@h:1", extra={"url": "redis://u:hunter2@h"})

    (line,) = lines(log_format, log)
    assert "ter2" not in line
    assert "redis://***@h:1" in line


@pytest.mark.parametrize("log_format", logs.FORMATS)
def test_lines_are_bounded(log_format: str) -> None:
    (line,) = lines(log_format, lambda log: log.info("x" * 1_000_000, extra={"detail": "y" * 1_000_000}))
    assert len(line) < 3 * logs.MAX_TEXT


def test_the_level_holds_for_all_and_libraries_stay_quiet() -> None:
    def log(logger: logging.Logger) -> None:
        logger.debug("ours")
        logging.getLogger("httpx").info("HTTP Request: GET http://h/?q=a-prompt")
        logging.getLogger("uvicorn.error").info("Started server process")
        logging.getLogger("uvicorn.error").error("theirs, and it matters")

    assert [line.rsplit(": ", 1)[1] for line in lines("text", log, "debug")] == ["ours", "theirs, and it matters"]
    assert len(lines("text", log, "info")) == 1


def test_configuring_twice_writes_once() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream=stream)
    logs.configure("info", "text", stream=stream)
    logging.getLogger("recursant.test").info("once")
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize(("level", "log_format"), [("loud", "text"), ("info", "xml")])
def test_unknown_words_are_refused(level: str, log_format: str) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        logs.configure(level, log_format)
