"""Compiled models and mixed precision, beside eager execution in float32."""
