"""What people ask of running hosts, and what hosts answer: dumps, profiles, rehearsals."""
