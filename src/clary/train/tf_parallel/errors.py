"""Errors that are TensorFlow's alone; those between ranks are `parallel.errors`."""

from __future__ import annotations


# AutoGraph hands an exception through a tf.function as it is if its kind derives from Exception itself.
class GraphBuildError(Exception):
    """A step or a model that cannot be cut as it is written; the text says why, and the way out. Nothing has run."""
