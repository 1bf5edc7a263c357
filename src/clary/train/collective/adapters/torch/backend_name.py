"""The name under which torch.distributed knows the backend."""

BACKEND = "smddp"
