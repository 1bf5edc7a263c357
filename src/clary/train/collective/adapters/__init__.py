"""Adapters of frameworks; no other package of the collectives imports a framework."""
