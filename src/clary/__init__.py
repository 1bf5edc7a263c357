"""Clary: SageMaker Training on machines you own."""

__version__ = "0.1.0"
