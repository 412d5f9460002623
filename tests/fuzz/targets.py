"""Which targets there are."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Final

TARGETS: Final = {
    "http2": "bytes of a client, over the gRPC application and scripted sessions",
    "frames": "well-formed frames, while the application and the transport do anything",
    "grpc": "the content of one stream, and health requests",
    "session": "messages of ext_proc, over a small fleet",
    "agent": "the headers that describe an agent's request",
    "body": "JSON bodies",
    "queue": "lines between the processes of a host",
    "store": "workers' reports, as protobuf and as JSON",
}
# Values that JSON parsers take and readers stumble over.
JSON_WORDS: Final = (
    b'"\\ud800"',
    b'"\\u0000"',
    b"Infinity",
    b"-Infinity",
    b"NaN",
    b"1e999",
    b"-0.0",
    b"1e300",
    b"18446744073709551616",
    b"null",
    b"true",
    b"[[]]",
    b"{}",
)


@dataclass(frozen=True, slots=True)
class Target:
    """What is fuzzed.

    Attributes:
        name: one of `TARGETS`.
        check: raises where a promise is broken.
        seeds: inputs to begin with.
        words: what to put into them, besides what the fuzzer finds by itself.
    """

    name: str
    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...]


def load(name: str) -> Target:
    """Import a target; only now, so that what it tests is imported when atheris is ready for it."""
    module = import_module(f"fuzz.{name}_target")
    return Target(name, module.check, module.SEEDS, getattr(module, "WORDS", ()))
