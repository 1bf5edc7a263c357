"""Adapters of frameworks: each is imported in a module of its own here, and nowhere else in the train side."""
