"""Measurements, each a command of its own: `python -m benchmarks.coverage`, `python -m benchmarks.dispatches`."""
