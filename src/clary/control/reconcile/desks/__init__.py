"""Users' requests to running hosts, and the hosts' answers: dumps, profiles, rehearsals."""
