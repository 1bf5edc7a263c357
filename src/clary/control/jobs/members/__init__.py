"""Treatment of each member of a request: honoured, accepted with a warning, or refused with the reason."""
