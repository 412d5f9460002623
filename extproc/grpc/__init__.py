"""gRPC over HTTP/2 as far as an ext_proc server needs it: message framing, statuses, health checking."""
