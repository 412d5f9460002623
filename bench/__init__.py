"""Benchmarks: numbers with the command that reproduces them. Never part of the tests."""
