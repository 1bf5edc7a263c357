"""Script that trains until SIGTERM, waits to count further signals, saves, and exits with 0; the next run resumes.

A run that finds a checkpoint of its host trains a few steps more and completes. Each line is printed by one write.
"""

import json
import os
import pathlib
import signal
import sys
import time

LINGER_S = 2.5  # a second SIGTERM would arrive within this time
PAUSE_S = 0.1
MORE_STEPS = 5

host = os.environ["SM_CURRENT_HOST"]
place = pathlib.Path("/opt/ml/checkpoints") / f"{host}.json"
heard = 0


def caught(*_):
    global heard
    heard += 1


def say(word, **facts):
    os.write(1, f"{word} {json.dumps({'host': host, **facts})}\n".encode())


def save(step, **facts):
    new = place.with_suffix(".new")
    new.write_text(json.dumps({"step": step, **facts}))
    os.replace(new, place)


signal.signal(signal.SIGTERM, caught)
last = json.loads(place.read_text()) if place.exists() else {"step": 0}
step, begun_at = last["step"], last["step"]
say("BEGIN", last=last)
while not heard and not (begun_at and step == begun_at + MORE_STEPS):
    time.sleep(PAUSE_S)
    step += 1
    save(step)
if heard:
    at = time.time()
    until = time.monotonic() + LINGER_S
    while time.monotonic() < until:
        time.sleep(0.05)
    save(step, heard=heard)
    reason = json.loads(pathlib.Path(os.environ["CLARY_STOP_NOTICE"]).read_text())["reason"]
    say("HEARD", count=heard, at=at, step=step, reason=reason)
    sys.exit(0)
pathlib.Path(os.environ["SM_MODEL_DIR"], f"{host}.json").write_text(json.dumps({"last": last, "step": step}))
