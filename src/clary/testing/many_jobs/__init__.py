"""A crowd of clients that create, stop and delete jobs at the same time, and checks of the service meanwhile.

Where: `python -m benchmarks concurrency` and tests/integration run `crowd.run_crowd` against a real service.
"""
