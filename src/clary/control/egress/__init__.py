"""Traffic that programs may send out of this machine: the owner's entries, the policy for targets, tunnels."""
