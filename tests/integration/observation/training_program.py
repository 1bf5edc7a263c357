"""Entry point of a job that reports its training in every way that real programs use; standard library only."""

import json
import os
import struct
import time
import urllib.request

STEPS = 40
SEEN = "/opt/ml/output/seen"  # ends the pause in the middle, in which the test reads the reports so far
PIXEL = bytes.fromhex(  # a whole PNG of one pixel
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c636000000002000148afa471"
    "0000000049454e44ae426082"
)


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def masked(data):
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def record(data):
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def varint(number):
    parts = b""
    while number > 0x7F:
        parts += bytes([number & 0x7F | 0x80])
        number >>= 7
    return parts + bytes([number])


def block(field, data):
    return varint(field << 3 | 2) + varint(len(data)) + data


def event(step, value):
    stamp = struct.pack("<d", time.time())
    return record(b"\x09" + stamp + b"\x10" + varint(step) + block(5, block(1, value)))


def scalar(tag, number):
    return block(1, tag.encode()) + b"\x15" + struct.pack("<f", number)


def histogram(tag):
    limits, counts = struct.pack("<3d", 0.0, 1.0, 2.0), struct.pack("<3d", 0.0, 5.0, 7.0)
    return block(1, tag.encode()) + block(5, b"\x09" + struct.pack("<d", -1.0) + block(6, limits) + block(7, counts))


def image(tag):
    return block(1, tag.encode()) + block(4, b"\x08\x01\x10\x01\x18\x01" + block(4, PIXEL))


def say(percent, **metrics):
    """Post a status as transformers' KubeflowCallback does."""
    with open(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]) as file:
        token = file.read().strip()
    status = {"progressPercentage": percent, "estimatedRemainingSeconds": 9}
    status["metrics"] = [{"name": name, "value": str(value)} for name, value in metrics.items()]
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    url = os.environ["KUBEFLOW_TRAINER_SERVER_URL"]
    body = json.dumps({"trainerStatus": status}).encode()
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200


def main(longest_pause_s):
    folder = "/opt/ml/output/tensorboard/run"
    os.makedirs(folder, exist_ok=True)
    store = os.environ["MLFLOW_TRACKING_URI"].removeprefix("file:") + "/0/0123456789abcdef0123456789abcdef/metrics"
    os.makedirs(store, exist_ok=True)
    assert os.environ["WANDB_MODE"] == "offline"
    with (
        open(f"{folder}/events.out.tfevents.1.algo-1", "wb", buffering=0) as events,
        open(f"{os.environ['SAGEMAKER_METRICS_DIRECTORY']}/{os.getpid()}.json", "w") as metrics,
        open(f"{store}/accuracy", "w") as accuracy,
    ):
        events.write(record(b"\x09" + struct.pack("<d", time.time()) + block(3, b"brain.Event:2")))
        events.write(event(0, histogram("weights")) + event(0, image("sample")))
        for step in range(1, STEPS + 1):
            events.write(event(step, scalar("train/loss", 1 / step)))
            values = {"MetricName": "throughput", "Value": 100 + step, "Timestamp": time.time(), "Step": step}
            print(json.dumps(values), file=metrics, flush=True)
            print(f"{int(time.time() * 1000)} {step / STEPS} {step}", file=accuracy, flush=True)
            bar = "#" * (step // 4)
            print(f"\r{step * 100 // STEPS:3}%|{bar:<10}| {step}/{STEPS} [00:01<00:02, 9.0it/s]", end="", flush=True)
            if step == STEPS // 2:
                say(50, current_step=step, total_steps=STEPS, current_epoch=1.0, grad_norm=0.25)
                until_s = time.monotonic() + longest_pause_s
                while not os.path.exists(SEEN) and time.monotonic() < until_s:
                    time.sleep(0.05)
    say(100, grad_norm=0.25)
    print()


if __name__ == "__main__":
    main(float(os.environ["LONGEST_PAUSE_S"]))
