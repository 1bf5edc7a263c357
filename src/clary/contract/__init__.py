"""Messages and formats that clients, service, agents and training programs share. Standard library only."""
