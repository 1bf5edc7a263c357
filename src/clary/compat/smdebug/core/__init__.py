"""Names that programs take from smdebug's inside."""
