"""Attention modules of SMP v2."""
