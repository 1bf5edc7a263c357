"""The HTTP side of the service: listener, TLS, settings of the app."""
