"""Configuration: the typed model, and the loader that reads `recursant.yaml`."""
