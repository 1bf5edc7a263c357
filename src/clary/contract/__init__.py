"""Agreements between clients, service, agents and training programs. Standard library only."""
