"""Pure decisions about hosts: shapes of instance types, placement on this machine, the next job to run."""
