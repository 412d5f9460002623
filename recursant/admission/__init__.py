"""Admission: protect the latency targets before the GPU. Classes, shares, memory, and the queue of held requests."""
