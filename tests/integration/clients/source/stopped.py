"""Script that prints READY, counts SIGTERMs for a while after the first, and exits with 0; each line is one write.

Lines: READY, SIGNAL, DONE, each followed by JSON: rank, host, time, number of the signal, and the stop notice.
"""

import json
import os
import signal
import time

LINGER_S = 1.5  # a forwarded second SIGTERM would arrive within this time
MAX_WAIT_S = 120.0

BASE = os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml")
with open(BASE + "/input/config/resourceconfig.json") as resources:
    host = json.load(resources)["current_host"]
who = {"rank": int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))), "host": host}
count = 0


def say(word, **facts):
    os.write(1, f"{word} {json.dumps({**who, **facts})}\n".encode())


def on_signal(number, frame):
    global count
    at = time.time()
    count += 1
    try:
        with open(os.environ["CLARY_STOP_NOTICE"]) as file:
            notice = json.load(file)
    except (KeyError, OSError, ValueError) as error:
        notice = repr(error)
    say("SIGNAL", at=at, count=count, notice=notice, grace=os.environ.get("CLARY_STOP_GRACE_S"))


signal.signal(signal.SIGTERM, on_signal)
say("READY")
until = time.monotonic() + MAX_WAIT_S
while not count and time.monotonic() < until:
    time.sleep(0.01)
time.sleep(LINGER_S)
say("DONE", count=count)
