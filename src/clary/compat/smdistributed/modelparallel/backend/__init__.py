"""Names that AWS's launcher looks for."""
