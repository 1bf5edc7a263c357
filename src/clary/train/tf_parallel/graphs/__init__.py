"""Graphs without TensorFlow: decisions on operations, levels, messages and orders, all pure."""
