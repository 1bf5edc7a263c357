"""What a key may do: the key of an attempt opens what its job's request names, and the owner's opens everything."""
