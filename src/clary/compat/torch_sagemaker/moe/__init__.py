"""Mixture of experts of SMP v2."""
