"""What agents send to the service, checked and handed on."""
