"""What SMP v2 adds to FSDP."""
