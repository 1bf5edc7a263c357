"""Benchmarks: `python -m benchmarks NAME [--quick] [--record]`; JSON lines on stdout, progress on stderr."""
