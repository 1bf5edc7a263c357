"""The ranks of a group, the hosts they share, and authenticated connections between them.

    group          `connect_group`: all steps in order
    store          where ranks find each other; `tcp_store` and `store_server` are our own
    hosts          which ranks share a host, and under which address this one is reached
    records        what ranks publish, and what follows from it
    listeners      where a rank is reached while the group is formed
    meeting        accepting and connecting, in one loop
    handshake      the proof of membership; `conversation` moves it over a socket
    words          ready, or giving up
    segment        memory that the ranks of a host share

Why in Python: docs/design/smddp.md.
"""
