"""The training program of jobs under faults, and its expected output. Pure.

The program records each start in the object store under a key of its own, so that starts can be counted even if their
output was lost. Then it prints numbered lines, writes weights that follow from the names of job and host, and prints
that it is done. Standard library only: it runs in the job's interpreter, which has no package of Clary.
"""

from __future__ import annotations

import hashlib

BUCKET = "clary"
MARKER_PREFIX = "fault-markers"
PROGRAM_KEY = "fault-program/program.py"
STARTED_LINE = "program started"
DONE_LINE = "program done"

SOURCE = '''
import datetime, hashlib, hmac, http.client, json, os, sys, time, urllib.parse, uuid

name, num_lines, work_s, num_bytes, exit_code = (
    sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
host = json.load(open("/opt/ml/input/config/resourceconfig.json"))["current_host"]
start = uuid.uuid4().hex


def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def put(key):
    """Store an empty object; tries for a while, since everything on the way may be down."""
    url = urllib.parse.urlsplit(os.environ["AWS_ENDPOINT_URL"])
    region = os.environ["AWS_REGION"]
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        empty = hashlib.sha256(b"").hexdigest()
        headers = {"host": url.netloc, "x-amz-content-sha256": empty, "x-amz-date": now}
        names = ";".join(sorted(headers))
        lines = "".join(f"{item}:{headers[item]}\\n" for item in sorted(headers))
        canonical = f"PUT\\n/{key}\\n\\n{lines}\\n{names}\\n{empty}"
        scope = f"{now[:8]}/{region}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\\n{now}\\n{scope}\\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        secret = b"AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"].encode()
        for part in (now[:8], region, "s3", "aws4_request"):
            secret = sign(secret, part)
        signature = hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={os.environ['AWS_ACCESS_KEY_ID']}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}")
        headers["content-length"] = "0"
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=5)
        try:
            connection.request("PUT", "/" + key, headers=headers)
            status = connection.getresponse().status
            if status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        time.sleep(0.1)


put(f"{BUCKET}/{MARKER_PREFIX}/{name}/{host}/{start}/started")
print(f"{STARTED_LINE} {start}", flush=True)
for number in range(1, num_lines + 1):
    print(f"line {number} of {name}", flush=True)
    if number % max(1, num_lines // 20) == 0:
        time.sleep(work_s / 20)
block = hashlib.sha256(f"{name}/{host}".encode()).digest()
with open("/opt/ml/model/partial", "wb") as file:
    file.write((block * (num_bytes // 32 + 1))[:num_bytes])
os.rename("/opt/ml/model/partial", f"/opt/ml/model/{host}.bin")
put(f"{BUCKET}/{MARKER_PREFIX}/{name}/{host}/{start}/done")
print(DONE_LINE, flush=True)
sys.exit(exit_code)
'''


def program_text() -> str:
    """Return the program as it is stored."""
    constants = {
        "BUCKET": BUCKET,
        "MARKER_PREFIX": MARKER_PREFIX,
        "STARTED_LINE": STARTED_LINE,
        "DONE_LINE": DONE_LINE,
    }
    return "".join(f"{name} = {value!r}\n" for name, value in constants.items()) + SOURCE


def expected_weights(job_name: str, host: str, num_bytes: int) -> bytes:
    """Return the result that the program on this host writes.

    Args:
        job_name: name of the job.
        host: such as algo-1.
        num_bytes: size of the result.
    """
    block = hashlib.sha256(f"{job_name}/{host}".encode()).digest()
    return (block * (num_bytes // len(block) + 1))[:num_bytes]


def expected_lines(job_name: str, num_lines: int) -> list[str]:
    """Return the numbered lines that the program prints."""
    return [f"line {number} of {job_name}" for number in range(1, num_lines + 1)]
