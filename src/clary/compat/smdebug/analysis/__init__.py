"""What analyses use."""
