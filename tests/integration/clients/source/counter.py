"""Script that counts steps, keeps the count in the checkpoint folder, and resumes from the count of an earlier run.

counter.py --steps 40 --pause 0.2
"""

import argparse
import json
import os
import signal
import sys
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--pause", type=float, required=True)
parser.add_argument("--folder", default="/opt/ml/checkpoints")
options, _ = parser.parse_known_args()
place = os.path.join(options.folder, f"{os.environ['SM_CURRENT_HOST']}.json")
is_told = False


def tell(*_):
    global is_told
    is_told = True


def save(step):
    with open(place + ".new", "w") as file:
        json.dump({"step": step}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(place + ".new", place)


signal.signal(signal.SIGTERM, tell)
first = 0
if os.path.exists(place):
    with open(place) as file:
        first = json.load(file)["step"]
print(f"begins at step {first}", flush=True)
for step in range(first, options.steps):
    time.sleep(options.pause)
    save(step + 1)
    print(f"step {step + 1} done", flush=True)
    if is_told:
        print(f"told to stop, saved step {step + 1}", flush=True)
        sys.exit(143)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "count.json"), "w") as file:
    json.dump({"step": options.steps, "began_at": first}, file)
