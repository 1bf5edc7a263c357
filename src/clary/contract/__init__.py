"""Foundation: what clients, service, agents and training programs agree on. Standard library only."""
