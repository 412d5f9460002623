"""The ext_proc service: the session (sans-IO), its transports, and the wiring."""
