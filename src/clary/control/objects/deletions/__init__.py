"""Bodies of DeleteObjects: their limit, and the names of their keys in the store."""
