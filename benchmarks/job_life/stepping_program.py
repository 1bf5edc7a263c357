"""The program of `goodput` and `spot`: one plain Python process a host, a barrier over TCP a step, no torch.

Each host puts something of its own into every step; rank 0 gathers it and sends it round, and the state after a step
is the hash of the state before it and of all of that (`step_history.states` works the same chain out). Whoever goes on
from another state than the others is found at once. Every host writes the state into its checkpoint folder, in one
step, each SAVE_EVERY steps; a new attempt begins with the newest state that any host has.

Environment: STEP_S, SAVE_EVERY, PORT; NUM_STEPS, after which it ends, 0 for never. Every rank prints
`step N STATE at SECONDS by RANK of ATTEMPT after SECONDS_OF_THE_LAST_SAVE`: a host that dies takes its last lines
along, the others have theirs.
"""

PROGRAM = "steps.py"
SCRIPT = """import hashlib, json, os, pathlib, socket, sys, time
folder = pathlib.Path("/opt/ml/checkpoints")
folder.mkdir(parents=True, exist_ok=True)
hosts, me = json.loads(os.environ["SM_HOSTS"]), os.environ["SM_CURRENT_HOST"]
hosts.sort(key=lambda name: int(name.rpartition("-")[2]))
rank, port = hosts.index(me), int(os.environ["PORT"])
step_s, save_every = float(os.environ["STEP_S"]), int(os.environ["SAVE_EVERY"])
num_steps = int(os.environ.get("NUM_STEPS", "0"))

def newest():
    found = [json.loads(path.read_text()) for path in folder.glob("state-*.json")]
    return max(found, key=lambda item: item["step"], default={"step": 0, "state": "0" * 64})

def meet():
    if rank == 0:
        listening = socket.create_server(("", port))
        listening.settimeout(60)
        streams = {}
        while len(streams) < len(hosts) - 1:
            stream = listening.accept()[0].makefile("rwb")
            streams[int(stream.readline())] = stream
        return [streams[index] for index in sorted(streams)]
    deadline_s = time.monotonic() + 60
    while True:
        try:
            connection = socket.create_connection((hosts[0], port), timeout=5)
            break
        except OSError:  # rank 0 does not listen yet
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)
    connection.settimeout(None)
    stream = connection.makefile("rwb")
    tell(stream, rank)
    return [stream]

def tell(stream, item):
    stream.write(json.dumps(item).encode() + b"\\n")
    stream.flush()

def hear(stream):
    line = stream.readline()
    if not line:
        raise ConnectionResetError("a peer has gone")
    return json.loads(line)

def exchange(item):
    # Returns what every rank has given, in their order.
    if rank == 0:
        items = [item, *(hear(stream) for stream in streams)]
        for stream in streams:
            tell(stream, items)
        return items
    tell(streams[0], item)
    return hear(streams[0])

streams = meet()
known = max(exchange(newest()), key=lambda item: item["step"])
step, state = known["step"], known["state"]
attempt = exchange(os.urandom(4).hex())[0]
save_took_s = 0.0
while not num_steps or step < num_steps:
    time.sleep(step_s)
    mine = hashlib.sha256(f"{step + 1}:{rank}".encode()).hexdigest()
    given = exchange([step, state, mine])
    if any(item[:2] != [step, state] for item in given):
        sys.exit(f"states differ before step {step + 1}: {given}")
    step += 1
    state = hashlib.sha256((state + "".join(item[2] for item in given)).encode()).hexdigest()
    if step % save_every == 0:
        began_s = time.monotonic()
        place = folder / f"state-{rank}.json"
        new = place.with_suffix(".new")
        new.write_text(json.dumps({"step": step, "state": state}))
        os.replace(new, place)
        save_took_s = time.monotonic() - began_s
    line = f"step {step} {state} at {time.monotonic():.4f} by {rank} of {attempt} after {save_took_s:.5f}\\n"
    os.write(1, line.encode())  # one write: a kill leaves the whole line or nothing
exchange("done")  # so that nobody hangs up before the others have the last step
"""
