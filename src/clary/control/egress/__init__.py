"""Traffic that programs may send out of this machine: the owner's entries, the judgement of targets, tunnels."""
