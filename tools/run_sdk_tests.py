"""Run the integration tests of the SageMaker SDK's own repository against a Clary service and write `docs/clients.md`.

    git clone --branch v2.257.6 https://github.com/aws/sagemaker-python-sdk CHECKOUT
    .venv/bin/python -m tools.run_sdk_tests CHECKOUT --sdk 2 --other-python python3.12 --write

Nothing of the checkout is in this tree, and nothing in it is changed: fixtures that build images with Docker and push
them to AWS are replaced by names of images, which settings of the service map to environments of this machine. The
service is one of its own, in `build/sdk-tests`, on free ports, and is stopped at the end.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.sdk_tests import environments, page
from tools.sdk_tests.plan import PLANS, ROOT, Plan, settings
from tools.sdk_tests.running import NOT_RUN, Ended, run_suite
from tools.sdk_tests.service import running_service

_WORK = ROOT / "build/sdk-tests"


def main() -> int:
    """Run the chosen tests; return 1 if a test failed for which no reason is known."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the service is stopped
    plan = PLANS[options.sdk]
    result_file = _WORK / f"sdk{options.sdk}.json"
    result = run(plan, options.checkout.resolve(), options) if options.checkout else {}
    kept = json.loads(result_file.read_text(encoding="utf-8")) if result_file.exists() else {"tests": []}
    if options.checkout and options.match:
        result["tests"] = merged(kept["tests"], result["tests"])
    if options.checkout:
        result_file.write_text(json.dumps(result, indent=1), encoding="utf-8")
    else:
        result = kept
    ends = [Ended(**end) for end in result["tests"]]
    if options.write:
        page.write(plan.sdk, result, ends)
    unexplained = page.unexplained(ends)
    for end in unexplained:
        print(f"no reason known: {end.test}: {end.words[-300:]}", file=sys.stderr)
    return 1 if unexplained else 0


def run(plan: Plan, checkout: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the tests of a plan; return their ends, with the versions of the repository and of its packages."""
    made = _WORK / "environments"
    made.mkdir(parents=True, exist_ok=True)
    python = environments.make_client(plan, made)
    environments.make_images(plan, made, options.other_python)
    archive = _WORK / "sagemaker-dev-1.0.tar.gz"
    with tarfile.open(archive, "w:gz"):
        pass  # the images have the SDK in them: a job that installs it from here goes on with theirs
    ends: list[Ended] = []
    own = _WORK / f"run-sdk{plan.sdk}-{time.time_ns()}"
    own.mkdir()
    lines = "".join(f"{line}\n" for line in options.setting)
    with running_service(own / "home", lines + settings(plan, made)) as environment:
        for number, suite in enumerate(plan.suites):
            ends += run_suite(
                suite,
                checkout=checkout,
                python=python,
                environment=environment,
                fixtures=plan.fixtures(archive),
                deadline_s=options.deadline_s,
                match=options.match,
                log=own / f"{number}.log",
            )
    return {
        "repository": (checkout / "VERSION").read_text(encoding="utf-8").strip(),
        "packages": {name: environments.version(python, name) for name in (plan.package, "boto3")},
        "tests": [asdict(end) for end in ends],
    }


def merged(before: Sequence[dict[str, Any]], now: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last end of each test, file by file, when some were run again."""
    ends = {end["test"]: end for end in before if end["outcome"] != NOT_RUN} | {end["test"]: end for end in now}
    return sorted(ends.values(), key=lambda end: str(end["test"]).partition("::")[0])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="?", type=Path, help="the SDK's repository; without it, the last run is read")
    parser.add_argument("--sdk", type=int, choices=sorted(PLANS), required=True, help="major version of the SDK")
    parser.add_argument("--match", default="", help="pytest's -k: which tests; the ends of others stay as they were")
    parser.add_argument("--deadline-s", type=float, default=600.0, help="how long a test may take")
    parser.add_argument("--other-python", default="", help="an interpreter whose version is not the environments' own")
    parser.add_argument("--setting", action="append", default=[], help="a line for the service's settings.toml")
    parser.add_argument("--write", action="store_true", help="write the table of this SDK into docs/clients.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
