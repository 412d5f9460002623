"""Supervised processes: `recursant up` starts them in order, keeps them alive and leaves none behind."""
