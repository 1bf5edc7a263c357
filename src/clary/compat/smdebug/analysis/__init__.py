"""Names that analysis scripts import."""
