"""Names that analyses import."""
