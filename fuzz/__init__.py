"""Coverage-guided fuzzing of input from strangers and programs; `make fuzz` runs it, docs/fuzzing.md explains it.

Every target is a module with `open_target`, which yields a function of bytes. The functions need no fuzzer: a unit test
runs them over the corpus, so that what fuzzing has found stays found.
"""
