"""Errors that only TensorFlow programs raise; errors between ranks are in `parallel.errors`."""

from __future__ import annotations


# AutoGraph passes an exception through a tf.function unchanged if its class derives directly from Exception.
class GraphBuildError(Exception):
    """A program cannot run on several partitions as written; the text names the reason and a remedy."""
