"""Recursant: agent-aware traffic control for vLLM fleets.

The domain lives here in plain Python; the services `extproc` and `xds_server` import it, never the reverse.
Importing this package loads nothing heavy.
"""

__version__ = "0.1.0"
