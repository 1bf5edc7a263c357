"""Graphs without TensorFlow: pure decisions on operations, levels, messages and orders."""
