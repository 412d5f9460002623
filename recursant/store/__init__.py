"""The shared state in Redis: keys, codecs, publish and follow, and nothing else (DESIGN §6)."""
