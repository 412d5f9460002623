"""gRPC status codes (google.rpc.Code) that the transports send."""

from typing import Final

OK: Final = 0
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
RESOURCE_EXHAUSTED: Final = 8
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
