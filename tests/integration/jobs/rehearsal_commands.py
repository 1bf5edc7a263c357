"""Helpers for `clary rehearse`: its exit codes, its requests, and its certificate."""

from __future__ import annotations

import json
from pathlib import Path

from boto3_clients import unique
from program_jobs import script_request

FOLDER = Path(__file__).parent
PROGRAM = (FOLDER / "rehearsed_program.py").read_text()
LIMIT_S = 300
PASS = 0
FAIL = 1
USAGE = 2
INCONCLUSIVE = 3


def forgetting(what):
    """Return the program that forgets this part; with an empty string it restores every part."""
    assert 'FORGETS = ""' in PROGRAM
    return PROGRAM.replace('FORGETS = ""', f'FORGETS = "{what}"')


def request_file(aws, folder, script, **options):
    """Write the request of a job that has never run; return the file."""
    name = unique("rehearsed")
    config = {"S3Uri": f"s3://clary/users-own/{name}"}
    request = script_request(aws, name, {"train.py": script}, **{"CheckpointConfig": config, **options})
    path = folder / "request.json"
    path.write_text(json.dumps(request))
    return path, name


def rehearse(own, folder, target, *arguments):
    """Run the command; return the finished process and the certificate."""
    place = folder / "certificate.json"
    done = own.clary("rehearse", str(target), *arguments, "--certificate", str(place), check=False, timeout=LIMIT_S)
    said = done.stdout + done.stderr
    assert place.exists(), said
    return done, json.loads(place.read_text())
