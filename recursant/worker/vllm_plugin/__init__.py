"""Reports a vLLM from inside its own process (SPEC B3a): a stat logger plugin, for vLLM as it is.

vLLM's engine thread only counts (`counting`); a thread of our own reads the counts and reports. Nothing here may
import more than the worker extra: it runs beside vLLM's own dependencies.
"""
