"""The HTTP side of the service: listener, TLS, routes and pages, and the start of the service."""
