"""Shipped fakes and fixtures; only tests, benchmarks, tools and fuzz targets import them."""
