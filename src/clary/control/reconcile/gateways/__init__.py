"""Gateways check the messages of agents to the service, and pass them on."""
