"""Pure decisions about hosts: shapes of instance types, placement on this machine, choice of the next job."""
