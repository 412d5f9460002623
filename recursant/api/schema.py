"""The JSON schema of a protobuf message, in the spelling of `recursant.store.codec`, for the API's description."""

from typing import Any, Final

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message

Schema = dict[str, Any]

_UINT_BITS: Final = {FieldDescriptor.TYPE_UINT32: 32, FieldDescriptor.TYPE_UINT64: 64}


def json_schema(message: type[Message]) -> Schema:
    """The schema of `message`; enum values are words, facts that may be unknown may be left out or null."""
    return _object(message.DESCRIPTOR)


# The descriptors of the C implementation are of other classes than the annotated ones.
def _object(descriptor: Any) -> Schema:
    return {
        "type": "object",
        "title": descriptor.name,
        "properties": {field.name: _field(field) for field in descriptor.fields},
    }


def _field(field: FieldDescriptor) -> Schema:
    if field.is_repeated:
        return {"type": "array", "items": _value(field)}
    if field.has_presence and field.message_type is None:
        return {"anyOf": [_value(field), {"type": "null"}]}
    return _value(field)


def _value(field: FieldDescriptor) -> Schema:
    if field.message_type is not None:
        return _object(field.message_type)
    if field.enum_type is not None:
        return {"type": "string", "enum": _words(field.enum_type)}
    if field.type == FieldDescriptor.TYPE_BOOL:
        return {"type": "boolean"}
    if field.type == FieldDescriptor.TYPE_STRING:
        return {"type": "string"}
    if field.type in _UINT_BITS:
        return {"type": "integer", "minimum": 0, "maximum": (1 << _UINT_BITS[field.type]) - 1}
    return {"type": "number"}


def _words(enum: EnumDescriptor) -> list[str]:
    """The names without the prefix they share; the zero value means "not said" and is none of the choices."""
    zero = enum.values_by_number[0].name
    prefix = zero.removesuffix("UNSPECIFIED")
    return [value.name.removeprefix(prefix).lower() for value in enum.values if value.number != 0]
