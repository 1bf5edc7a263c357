"""Formation of a group: its ranks and their hosts, and authenticated connections between ranks.

    group          `connect_group`: all steps in order
    store          the store through which ranks find each other; `tcp_store` and `store_server` are Clary's own store
    hosts          the ranks that share a host, and the address of this rank
    records        the records that ranks publish, and the layout of hosts that follows from them
    listeners      the addresses of a rank while the group is formed
    meeting        accepts and connects sockets in one loop
    handshake      the proof of membership; `conversation` runs it over a socket
    words          the messages of ranks that are ready or give up
    segment        memory that the ranks of a host share
    deadline       one deadline for all steps
    streams        plain sockets between ranks, for callers with their own protocol

Why in Python: docs/design/smddp.md.
"""
