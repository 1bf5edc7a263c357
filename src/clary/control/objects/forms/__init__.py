"""Uploads by browsers: forms that arrive in pieces, and the policies that permit them."""
