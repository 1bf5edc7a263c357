"""Pure decisions about hosts: what an instance type is, how hosts map to this machine, who runs next."""
