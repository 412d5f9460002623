"""Server-side HTTP/2 (RFC 9113), sans-IO: bytes in, bytes out, no sockets, no clock.

A server that never pushes and never indexes headers of its own: as much of the protocol as a gRPC server needs.
`docs/http2.md` lists what the RFC demands of such a server, with the test of each.
"""
