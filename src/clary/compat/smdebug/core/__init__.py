"""Names that programs import from smdebug's internal modules."""
