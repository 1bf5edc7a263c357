"""Engines, the sources of hosts: one narrow interface, one folder per engine."""
