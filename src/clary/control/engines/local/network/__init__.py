"""The network between the hosts of one machine: namespaces, links, bridges, switches, relays."""
