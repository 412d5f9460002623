"""What a reporting worker is told: by its environment, its Kubernetes annotations, and vLLM's command line. Pure.

The plugin inside vLLM and the sidecar beside it read the same names, so that one manifest serves both.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from recursant.fleet.address import join_address, split_address
from recursant.store.codec import MAX_ID_CHARS, MAX_NAME_CHARS, MAX_REPORT_INTERVAL_MS

REDIS_URL: Final = "RECURSANT_REDIS_URL"
API: Final = "RECURSANT_API"
WORKER_ID: Final = "RECURSANT_WORKER_ID"
WORKER_ADDRESS: Final = "RECURSANT_WORKER_ADDRESS"
ENGINE_URL: Final = "RECURSANT_ENGINE_URL"
MODEL_FAMILY: Final = "RECURSANT_MODEL_FAMILY"
EXCLUSIVE: Final = "RECURSANT_EXCLUSIVE"
CAPACITY_TOKENS: Final = "RECURSANT_CAPACITY_TOKENS"
MAX_QUEUE: Final = "RECURSANT_MAX_QUEUE"
ANNOTATIONS_FILE: Final = "RECURSANT_ANNOTATIONS_FILE"
GPUS: Final = "RECURSANT_GPUS"
REPORT_INTERVAL_MS: Final = "RECURSANT_REPORT_INTERVAL_MS"
# vLLM's own: the key that its clients send, which our look at /v1/models needs too.
ENGINE_API_KEY: Final = "VLLM_API_KEY"

# SPEC C7, in the order of their precedence.
CAPACITY_ANNOTATIONS: Final = ("recursant.io/instance-capacity", "volcano.sh/instance-capacity")
MAX_CAPACITY_TOKENS: Final = 10**12
# Of a downward-API file; Kubernetes keeps annotations below 256 KiB in all.
MAX_ANNOTATIONS_BYTES: Final = 1 << 20
# Where vLLM listens unless it is told otherwise.
ENGINE_PORT: Final = 8000
DEFAULT_INTERVAL_MS: Final = 200

_WHOLE: Final = re.compile(r"[0-9]{1,18}")
_ANNOTATION: Final = re.compile(r'([^\s="]+)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(r"\\(.)")
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("", "0", "false", "no", "off")
_ANY_ADDRESS: Final = ("", "0.0.0.0", "::", "*")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How one vLLM is to be reported.

    Attributes:
        worker_id: its stable name.
        address: where Envoy dials it, "host:port"; ":port" where the host is to be found out.
        engine_url: where this process asks it.
        redis_url: of the fleet's Redis; "" where there is none.
        api_url: of the control API, for a worker that cannot reach Redis.
        family: of all its models; "" where the names tell.
        exclusive: only agents whose policy names it may use it.
        capacity_tokens: tokens that it declares to take at once; None: what its KV cache holds.
        max_queue: the longest queue that it wants.
        gpus: which devices are its own, as CUDA_VISIBLE_DEVICES names them; None where nobody said.
        interval_ms: between two reports.
        api_key: of the engine; "" without.
    """

    worker_id: str
    address: str
    engine_url: str
    redis_url: str = ""
    api_url: str = ""
    family: str = ""
    exclusive: bool = False
    capacity_tokens: int | None = None
    max_queue: int | None = None
    gpus: str | None = None
    interval_ms: int = DEFAULT_INTERVAL_MS
    api_key: str = ""

    def __repr__(self) -> str:
        """Without what may hold a password."""
        return f"WorkerSettings(worker_id={self.worker_id!r}, address={self.address!r})"

    __str__ = __repr__


def from_environment(
    environment: Mapping[str, str],
    *,
    hostname: str,
    command_line: Sequence[str] = (),
    annotations: str = "",
) -> WorkerSettings | None:
    """The settings of a worker whose vLLM this process is, or stands beside; None where it is not to report.

    Args:
        environment: of the process.
        hostname: of the machine or pod, for the default id.
        command_line: vLLM's own, for where it listens.
        annotations: the text of a downward-API file.

    Raises:
        ValueError: a variable makes no sense; names it, its value and what is allowed.
    """
    redis_url, api_url = environment.get(REDIS_URL, ""), environment.get(API, "")
    if not redis_url and not api_url:
        return None
    check_urls(redis_url, api_url)
    host, port = listening(command_line)
    address = environment.get(WORKER_ADDRESS)
    if not address:
        address = f":{port}" if host in _ANY_ADDRESS else join_address(host, port)
    local = "127.0.0.1" if host in _ANY_ADDRESS else host
    return WorkerSettings(
        worker_id=check_id(environment.get(WORKER_ID) or f"{hostname}-{port}"),
        address=check_address(address if ":" in address else f"{address}:{port}"),
        engine_url=environment.get(ENGINE_URL) or f"{_scheme(command_line)}://{join_address(local, port)}",
        redis_url=redis_url,
        api_url=api_url,
        family=check_family(environment.get(MODEL_FAMILY, "")),
        exclusive=_flag(EXCLUSIVE, environment.get(EXCLUSIVE, "")),
        capacity_tokens=capacity_of(environment.get(CAPACITY_TOKENS, ""), annotations),
        max_queue=_number(MAX_QUEUE, environment.get(MAX_QUEUE, ""), (1 << 32) - 1),
        gpus=environment.get(GPUS, environment.get("CUDA_VISIBLE_DEVICES")),
        interval_ms=_number(REPORT_INTERVAL_MS, environment.get(REPORT_INTERVAL_MS, ""), MAX_REPORT_INTERVAL_MS)
        or DEFAULT_INTERVAL_MS,
        api_key=environment.get(ENGINE_API_KEY, ""),
    )


def listening(command_line: Sequence[str]) -> tuple[str, int]:
    """Host and port of a vLLM that was started like this; "" for all addresses.

    What stands in a file of vLLM's `--config` is not seen.
    """
    host, port = "", ENGINE_PORT
    for name, value in _flags(command_line):
        if name == "--host":
            host = value
        elif name == "--port" and _WHOLE.fullmatch(value) and 1 <= int(value) <= 65_535:
            port = int(value)
    return host, port


def capacity_of(said: str, annotations: str) -> int | None:
    """The declared capacity in tokens: as said outright, else as annotated; None where neither says.

    Raises:
        ValueError: it is no whole number.
    """
    if said:
        return _number(CAPACITY_TOKENS, said, MAX_CAPACITY_TOKENS)
    found = parse_annotations(annotations)
    for name in CAPACITY_ANNOTATIONS:
        if name in found:
            return _number(name, found[name], MAX_CAPACITY_TOKENS)
    return None


def parse_annotations(text: str) -> dict[str, str]:
    """A downward-API file: a line `key="value"` for each annotation, quoted as Go does; other lines are passed over."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _ANNOTATION.fullmatch(line.strip())
        if match is not None:
            found[match[1]] = _ESCAPE.sub(r"\1", match[2])
    return found


def check_urls(redis_url: str, api_url: str) -> None:
    """Can reports be sent there?

    Raises:
        ValueError: no.
    """
    # The URLs may hold passwords, so they are not repeated.
    if redis_url and not redis_url.startswith("unix://") and not _is_url(redis_url, ("redis", "rediss")):
        raise ValueError(f"{REDIS_URL}: expected redis://host:port, rediss://host:port or unix:///path")
    if api_url and not _is_url(api_url, ("http", "https")):
        raise ValueError(f"{API}: expected http://host:port")


def check_id(worker_id: str) -> str:
    """The id, if it is one.

    Raises:
        ValueError: it is none.
    """
    if not (worker_id.isascii() and worker_id.isprintable() and " " not in worker_id and len(worker_id) < MAX_ID_CHARS):
        raise ValueError(f"{WORKER_ID}: expected visible ASCII characters, at most {MAX_ID_CHARS}, got {worker_id!r}")
    return worker_id


def check_address(address: str) -> str:
    """The address, if somebody can dial it: "host:port", or ":port" where the host is to be found out.

    Raises:
        ValueError: nobody can.
    """
    try:
        split_address(f"localhost{address}" if address.startswith(":") else address)
    except ValueError as error:
        raise ValueError(f"{WORKER_ADDRESS}: {error}") from None
    return address


def check_family(family: str) -> str:
    """The family, if it is one, or "".

    Raises:
        ValueError: it is none.
    """
    if len(family) > MAX_NAME_CHARS or not family.isprintable() or "," in family:
        raise ValueError(f"{MODEL_FAMILY}: expected at most {MAX_NAME_CHARS} printable characters without commas")
    return family


def _flags(command_line: Sequence[str]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for index, argument in enumerate(command_line):
        name, equals, value = argument.partition("=")
        if equals:
            pairs.append((name, value))
        elif index + 1 < len(command_line):
            pairs.append((name, command_line[index + 1]))
    return pairs


def _is_url(url: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _scheme(command_line: Sequence[str]) -> str:
    return "https" if any(name == "--ssl-certfile" for name, _ in _flags(command_line)) else "http"


def _number(name: str, text: str, most: int) -> int | None:
    if not text:
        return None
    if not _WHOLE.fullmatch(text) or not 1 <= int(text) <= most:
        raise ValueError(f"{name}: expected a whole number from 1 to {most}, got {text[:300]!r}")
    return int(text)


def _flag(name: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in _TRUE and lowered not in _FALSE:
        raise ValueError(f"{name}: expected true or false, got {text[:300]!r}")
    return lowered in _TRUE
