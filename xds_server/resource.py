"""One named xDS resource with its version, and the type URLs that we serve."""

import hashlib
from dataclasses import dataclass
from typing import Final

_PREFIX: Final = "type.googleapis.com/"
LISTENER: Final = _PREFIX + "envoy.config.listener.v3.Listener"
ROUTE: Final = _PREFIX + "envoy.config.route.v3.RouteConfiguration"
CLUSTER: Final = _PREFIX + "envoy.config.cluster.v3.Cluster"
ENDPOINT: Final = _PREFIX + "envoy.config.endpoint.v3.ClusterLoadAssignment"
EXTENSION_CONFIG: Final = _PREFIX + "envoy.config.core.v3.TypedExtensionConfig"


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource as it goes on the wire.

    Attributes:
        type_url: of the message in `body`.
        name: unique within its type.
        body: the serialised message.
        version: a content hash: the same on every replica and after every restart.
    """

    type_url: str
    name: str
    body: bytes
    version: str

    @classmethod
    def of(cls, type_url: str, name: str, body: bytes) -> "Resource":
        """Wrap a message that was serialised in a stable order."""
        return cls(type_url, name, body, hashlib.sha256(body).hexdigest()[:16])
