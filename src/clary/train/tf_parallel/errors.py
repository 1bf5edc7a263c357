"""Errors of TensorFlow programs only; errors between ranks are in `parallel.errors`."""

from __future__ import annotations


# AutoGraph passes an exception through a tf.function unchanged if its class derives directly from Exception.
class GraphBuildError(Exception):
    """A step or a model that cannot be cut as it is written; the text has the reason and a remedy. No step has run."""
