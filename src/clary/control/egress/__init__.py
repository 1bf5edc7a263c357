"""What may leave this machine on behalf of programs: entries of the owner, the judgement of targets, and tunnels."""
