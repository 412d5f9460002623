"""WorkerState as bytes for Redis and as a dict for JSON, and the check that both must pass.

A report is taken whole or refused whole, with the field named: half a report would be an invented one.
"""

import math
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from recursant.fleet.address import split_address
from recursant.v1.worker_state_pb2 import WorkerPhase, WorkerState

# A report with a hundred adapters is about 10 KB. More than this is not a report.
MAX_STATE_BYTES: Final = 65_536
MAX_ID_CHARS: Final = 128
MAX_NAME_CHARS: Final = 256
# Liveness waits for three of these; no configured worker is asked more rarely either.
MAX_REPORT_INTERVAL_MS: Final = 3_600_000

_PHASE_PREFIX: Final = "WORKER_PHASE_"
_PHASE_NAMES: Final = {
    value: name.removeprefix(_PHASE_PREFIX).lower()
    for name, value in WorkerPhase.items()
    if value != WorkerPhase.WORKER_PHASE_UNSPECIFIED
}
_STOPPED: Final = WorkerPhase.WORKER_PHASE_STOPPED
_PHASES: Final = {name: value for value, name in _PHASE_NAMES.items()}
_ALLOWED_PHASES: Final = ", ".join(_PHASES)
_DOUBLES: Final = tuple(
    field.name for field in WorkerState.DESCRIPTOR.fields if field.type == FieldDescriptor.TYPE_DOUBLE
)
_INTEGERS: Final = (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64)


def encode(state: WorkerState) -> bytes:
    """The bytes for Redis.

    Raises:
        ValueError: the report is not valid; names the field.
    """
    check(state)
    data = state.SerializeToString()
    if len(data) > MAX_STATE_BYTES:
        raise ValueError(f"the report has {len(data)} bytes, allowed are {MAX_STATE_BYTES}")
    return data


def decode(data: bytes) -> WorkerState:
    """The report in `data`.

    Raises:
        ValueError: it is none, or not a valid one; names the field.
    """
    if len(data) > MAX_STATE_BYTES:
        raise ValueError(f"the report has {len(data)} bytes, allowed are {MAX_STATE_BYTES}")
    try:
        state = WorkerState.FromString(data)
    except DecodeError as error:
        raise ValueError(f"not a WorkerState: {error}") from None
    check(state)
    return state


def check(state: WorkerState) -> None:
    """Is this a report that a reader can use?

    Raises:
        ValueError: no; names the field, the value and what is allowed.
    """
    # Ids become header values and metric labels, so: visible ASCII.
    if not (1 <= len(state.id) <= MAX_ID_CHARS and _is_visible_ascii(state.id)):
        raise ValueError(f"id: expected 1 to {MAX_ID_CHARS} visible ASCII characters, got {state.id[:300]!r}")
    if state.phase not in _PHASE_NAMES:
        raise ValueError(f"phase: expected one of {_ALLOWED_PHASES}")
    if not 1 <= len(state.incarnation) <= MAX_ID_CHARS:
        raise ValueError(f"incarnation: expected 1 to {MAX_ID_CHARS} characters, got {len(state.incarnation)}")
    if state.sequence < 1:
        raise ValueError("sequence: expected 1 or more, rising with every report")
    if state.phase == _STOPPED:
        return
    try:
        split_address(state.address)
    except ValueError as error:
        raise ValueError(f"address: {error}") from None
    if not 1 <= state.report_interval_ms <= MAX_REPORT_INTERVAL_MS:
        raise ValueError(f"report_interval_ms: expected 1 to {MAX_REPORT_INTERVAL_MS}, got {state.report_interval_ms}")
    for index, model in enumerate(state.models):
        _check_name(f"models[{index}].name", model.name)
        if model.family:
            _check_name(f"models[{index}].family", model.family)
    for index, adapter in enumerate(state.lora_adapters):
        _check_name(f"lora_adapters[{index}]", adapter)
    for field in _DOUBLES:
        value = getattr(state, field)  # absent reads as 0
        if not (math.isfinite(value) and (value >= 0 or field == "gpu_temperature_c")):
            raise ValueError(f"{field}: expected a finite number of 0 or more, got {value}; leave out what is unknown")
    if state.kv_cache_usage > 1:
        raise ValueError(f"kv_cache_usage: expected 0 to 1, got {state.kv_cache_usage}")


def state_to_dict(state: WorkerState) -> dict[str, Any]:
    """The report as JSON values: field names as in the proto, `phase` as a word, unknown facts left out."""
    return _message_to_dict(state)


def state_from_dict(data: object) -> WorkerState:
    """The report that a JSON value describes. Keys that this version does not know are left aside.

    Raises:
        ValueError: it describes none; names the field, the value and what is allowed.
    """
    state = WorkerState()
    _fill(state, data, "")
    check(state)
    return state


def _is_visible_ascii(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def is_usable_name(name: str) -> bool:
    """Can a model or an adapter of this name be reported? A comma separates names in what we tell Envoy."""
    return 1 <= len(name) <= MAX_NAME_CHARS and name.isprintable() and "," not in name


def _check_name(where: str, name: str) -> None:
    if not is_usable_name(name):
        raise ValueError(
            f"{where}: expected 1 to {MAX_NAME_CHARS} printable characters without commas, got {name[:300]!r}"
        )


def _message_to_dict(message: Message) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            result[field.name] = [_message_to_dict(item) if field.message_type else item for item in value]
        elif field.message_type:
            result[field.name] = _message_to_dict(value)
        elif field.enum_type:
            result[field.name] = _PHASE_NAMES.get(value, "unspecified")
        else:
            result[field.name] = value
    return result


def _fill(message: Message, data: object, where: str) -> None:
    if not isinstance(data, dict):
        raise ValueError(f"{where or 'the report'}: expected an object, got {_kind(data)}")
    for field in message.DESCRIPTOR.fields:
        value = data.get(field.name)
        # null is how JSON says "unknown".
        if value is None:
            continue
        path = f"{where}.{field.name}" if where else field.name
        if field.is_repeated:
            if not isinstance(value, list):
                raise ValueError(f"{path}: expected a list, got {_kind(value)}")
            target = getattr(message, field.name)
            for index, item in enumerate(value):
                if field.message_type:
                    _fill(target.add(), item, f"{path}[{index}]")
                else:
                    target.append(_scalar(field, item, f"{path}[{index}]"))
        elif field.message_type:
            _fill(getattr(message, field.name), value, path)
        else:
            setattr(message, field.name, _scalar(field, value, path))


def _scalar(field: Any, value: object, path: str) -> object:
    if field.enum_type:
        if not (isinstance(value, str) and value in _PHASES):
            raise ValueError(f"{path}: expected one of {_ALLOWED_PHASES}, got {value!r:.300}")
        return _PHASES[value]
    if field.type == FieldDescriptor.TYPE_BOOL:
        if not isinstance(value, bool):
            raise ValueError(f"{path}: expected true or false, got {_kind(value)}")
        return value
    if field.type == FieldDescriptor.TYPE_STRING:
        if not isinstance(value, str):
            raise ValueError(f"{path}: expected a string, got {_kind(value)}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{path}: expected text, got half a surrogate pair") from None
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{path}: expected a number, got {_kind(value)}")
    if field.type not in _INTEGERS:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{path}: expected a finite number") from None
    bits = 32 if field.type == FieldDescriptor.TYPE_UINT32 else 64
    if value != value or value in (math.inf, -math.inf) or value != int(value) or not 0 <= value < 1 << bits:
        raise ValueError(f"{path}: expected a whole number from 0 to {(1 << bits) - 1}, got {value!r:.300}")
    return int(value)


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
