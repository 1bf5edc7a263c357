"""Additions of SMP v2 to FSDP."""
