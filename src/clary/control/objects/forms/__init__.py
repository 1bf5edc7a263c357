"""Uploads by browsers: forms that come in pieces, and the policies that let them."""
