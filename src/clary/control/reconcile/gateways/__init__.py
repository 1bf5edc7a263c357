"""Gateways: messages of agents to the service, checked and handed on."""
