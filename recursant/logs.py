"""Logging of every process: one event a line on standard error, as text or as JSON.

Modules log through `logging.getLogger(__name__)`; details that programs read go into `extra`:

    _log.info("listening", extra={"address": "127.0.0.1:8001"})

A prompt is never an argument of a log call. What this module adds is that no line breaks into two, that no line
grows without a bound, and that credentials in URLs are masked whoever logs them.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, TextIO

LEVELS: Final = ("debug", "info", "warning", "error")
FORMATS: Final = ("text", "json")
# Characters of one message or detail, and of a traceback.
MAX_TEXT: Final = 4_000
MAX_TRACEBACK: Final = 16_000

# Libraries that tell at INFO what we tell ourselves, or what they are asked for: addresses with query strings.
_CHATTY: Final = ("asyncio", "grpc", "httpcore", "httpx", "redis", "uvicorn")
_CREDENTIALS: Final = re.compile(r"(?<=://)[^\s/]*:\S*@")
_BREAKS: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# What every record has; anything else came through `extra`.
_OWN_ATTRIBUTES: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def configure(level: str = "info", log_format: str = "text", *, stream: TextIO | None = None) -> None:
    """Send all logs of this process to standard error, or to `stream`. Replaces what was configured before.

    Raises:
        ValueError: no such level or format.
    """
    if level not in LEVELS:
        raise ValueError(f"no log level {level!r}: expected one of {', '.join(LEVELS)}")
    if log_format not in FORMATS:
        raise ValueError(f"no log format {log_format!r}: expected one of {', '.join(FORMATS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(number)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


class TextFormatter(logging.Formatter):
    """`2026-11-29T15:40:45.123Z INFO recursant.api.service: listening address=127.0.0.1:8001`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        parts = [f"{_time(record)} {record.levelname} {record.name}: {_message(record)}"]
        parts += [f"{name}={_detail(value)}" for name, value in _details(record).items()]
        if error := _traceback(record):
            parts.append(error)
        return _BREAKS.sub(_escape, " ".join(parts))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`, the details, `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for name, value in _details(record).items():
            # The four above are ours.
            line.setdefault(name, value if isinstance(value, bool | int | float | None) else _detail(value))
        if error := _traceback(record):
            line["error"] = error
        return json.dumps(line)


def _time(record: logging.LogRecord) -> str:
    text = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    return _safe(record.getMessage(), MAX_TEXT)


def _details(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in record.__dict__.items() if name not in _OWN_ATTRIBUTES}


def _detail(value: Any) -> str:
    return _safe(str(value), MAX_TEXT)


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:
        return ""
    return _safe(logging.Formatter().formatException(record.exc_info), MAX_TRACEBACK)


def _safe(text: str, most: int) -> str:
    if "@" in text and "://" in text:
        text = _CREDENTIALS.sub("***@", text)
    return text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()
