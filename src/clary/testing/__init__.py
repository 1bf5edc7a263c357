"""Shipped fakes and fixtures for tests; imported by tests only."""
