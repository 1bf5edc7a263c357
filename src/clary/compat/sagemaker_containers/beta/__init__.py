"""The folder of `framework`."""
