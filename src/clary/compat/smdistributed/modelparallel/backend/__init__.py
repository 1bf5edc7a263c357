"""Names that AWS's launcher searches for."""
