"""Decisions about hosts: shapes and prices of types, placement on this machine, spot capacity, estimates of starts."""
