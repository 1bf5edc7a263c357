"""Program that prints its environment variables and arguments as one line of JSON."""

import json
import os
import sys

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "NCCL_DEBUG", "OMPI_COMM_WORLD_SIZE")
facts = {
    "host": os.environ["SM_CURRENT_HOST"],
    "hosts": json.loads(os.environ["SM_HOSTS"]),
    "variables": {name: os.environ[name] for name in NAMES if name in os.environ},
    "hyperparameters": json.loads(os.environ["SM_HPS"]),
    "arguments": sys.argv[1:],
    "checkpoints": sorted(os.listdir("/opt/ml/checkpoints")) if os.path.isdir("/opt/ml/checkpoints") else None,
}
print("facts: " + json.dumps(facts), flush=True)
