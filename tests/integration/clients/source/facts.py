"""Training script without torch: print facts about the program's environment, and write them as the model."""

import json
import os
import socket
import sys


def config(name):
    with open(f"/opt/ml/input/config/{name}.json") as file:
        return json.load(file)


facts = {
    "arguments": sys.argv[1:],
    "hostname": socket.gethostname(),
    "hosts": config("resourceconfig")["hosts"],
    "tf_config": json.loads(os.environ.get("TF_CONFIG", "null")),
    "hyperparameters": config("hyperparameters"),
    "channels": {
        channel: sorted(os.listdir(f"/opt/ml/input/data/{channel}"))
        for channel in sorted(os.listdir("/opt/ml/input/data"))
        if channel not in ("code", "sm_drivers")
    },
    "marker": os.environ.get("MARKER"),
}
print("facts: " + json.dumps(facts, sort_keys=True), flush=True)
os.makedirs("/opt/ml/model", exist_ok=True)
with open("/opt/ml/model/facts.json", "w") as file:
    json.dump(facts, file)
