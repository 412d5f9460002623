"""The simulated vLLM worker: a pure model of the engine, and the HTTP server that runs it in real time.

`engine` decides and counts, without clock or sockets; `server` speaks vLLM's API; `service` runs one worker.
"""
