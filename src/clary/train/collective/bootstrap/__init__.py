"""The ranks of a group, the hosts they share, and authenticated connections between them.

    group          `connect_group`: all steps in order
    store          the store through which ranks find each other; `tcp_store` and `store_server` are our own
    hosts          the ranks that share a host, and the address of this rank
    records        the records that ranks publish, and the layout that follows
    listeners      the addresses of a rank while the group is formed
    meeting        accepting and connecting, in one loop
    handshake      the proof of membership; `conversation` moves it over a socket
    words          messages of ranks that are ready or give up
    segment        memory that the ranks of a host share

Why in Python: docs/design/smddp.md.
"""
