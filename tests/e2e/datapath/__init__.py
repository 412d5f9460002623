"""A real Envoy with our resources, and small stand-ins around it: ADS, ext_proc, access log, workers.

The stand-ins are plain grpcio and sockets, run in one background thread, so that these tests need nothing of the
product but the resources and the Lua under test. Tests themselves are synchronous.
"""
