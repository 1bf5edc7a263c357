"""Write `docs/api.md` from the tables in `clary.control.jobs.members`.

Run: `python tools/make_api_page.py`; with `--check` it changes nothing and fails if the page is out of date.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from clary.control.jobs.members.judging import TABLES
from clary.control.jobs.members.member import Member, Outcome, Rule
from clary.control.jobs.members.place import HERE
from clary.control.jobs.members.told_defaults import TOLD, TOLD_OTHERWISE
from clary.control.services.unread_members import UNREAD

TARGET = Path(__file__).parent.parent / "docs/api.md"
HEAD = """# What becomes of each member of a request

Written by `python tools/make_api_page.py` from `src/clary/control/jobs/members`; change it there.

Each member of a request is honoured, accepted with a warning, or refused. A warning stands in the first lines of the
job's log and below `warnings` in `clary describe`. A refusal is a ValidationException that says what to change, and no
job is created. A row for a structure covers all members inside it. A member whose value is `false`, zero or empty is
treated as if it were absent, unless its row says otherwise. `emulation` lists, apart from warnings, how this machine
and its environment differ from the request (CPUs, memory, GPUs, versions of an image). An unknown instance type is a
warning. The quoted messages are those of engine local; with slurm and boxes they name nodes, their disks and the
network between them. In requests that create or update a job, a member that this release does not know causes a
warning; in the other operations that have a table below, it is refused.

Rules on several members together, such as InstanceGroups beside InstanceType, have refusal messages of their own.
"""
DEFAULTS = """
## Defaults that Describe returns

If a request left these members out, DescribeTrainingJob returns them with these values; Search does too, as far as its
structure has them.

| member | returned |
|---|---|
"""
OTHERWISE = """
These members have a documented default too, but follow rules of their own:

| member | rule |
|---|---|
"""
PROFILER = """
`ProfilingStatus` is Enabled with a ProfilerConfig or with profiler rules, and Disabled without them or with
DisableProfiler. A ProfilerConfig that says `DisableProfiler: true` and nothing else, which SDK v2 sends for
`disable_profiler=True`, is not returned: the SDK's own tests expect the real service to return none.
"""
OTHERS = """
## Other operations

In every other operation that is answered, each member is honoured, or refused with its own message. These members are
the exceptions:

| operation | members | without effect, because |
|---|---|---|
"""
IAM = """
## IAM

Every role of the account exists, trusts SageMaker and permits everything. So CreateRole answers EntityAlreadyExists,
GetRole describes a role of any name, and changes of roles and policies succeed for the owner's key without effect; the
service's log says so once for each operation. Every policy exists too: CreatePolicy returns an ARN of the account, and
GetPolicy, GetPolicyVersion and GetRolePolicy describe a policy with the one version `v1` that permits everything.
Nothing is stored, so that lists of policies and tags are empty. **Nothing is restricted**: a policy that denies
something is accepted and denies nothing. Operations whose only purpose is to permit less, such as
PutRolePermissionsBoundary, are refused as unknown. With `job_api_access = "own"`, a job's key may only call CreateRole,
GetRole, GetUser, ListRoles and ListAttachedRolePolicies.

ListRoles lists two roles: that of the setting `role_name`, and `AmazonSageMaker-ExecutionRole-clary` for scripts that
look for such a name. As on AWS, names that begin with `AmazonSageMaker-ExecutionRole` have the path `/service-role/`;
other roles have none. Wherever an ARN of a role is accepted, it may have any path.
"""
PROTOCOLS = """
## Protocols

A service answers in each of these protocols that botocore's model of the service names:

| protocol | what names the operation | services |
|---|---|---|
| AWS JSON 1.0 and 1.1 | `X-Amz-Target`, with `POST /` | SageMaker, CloudWatch Logs, CloudWatch, ECR |
| query | `Action` of a form or of the query, at the path `/` | STS, IAM, CloudWatch |
| REST JSON | method and path | SageMaker Metrics |
| Smithy RPC v2 CBOR | `POST /service/SERVICE/operation/NAME`, with `smithy-protocol: rpc-v2-cbor` | CloudWatch |

Signatures must cover `host` and, where they are sent, `x-amz-date`, `x-amz-target`, `x-amz-content-sha256` and
`content-encoding`. The content type may be unsigned: the AWS SDKs for JavaScript (v2) and PHP do not sign it. It never
chooses the operation alone, so a request whose content type is changed on the way means the same or fails. Operations
that answer with an event stream, such as StartLiveTail, are not offered ([logs](logs.md#writing-and-searching)).
"""
COLUMNS = "| member | decision | what it does, or what is said |\n|---|---|---|\n"


def page() -> str:
    """Return the text of the page."""
    return (
        HEAD
        + "".join(_section(operation, members) for operation, members in TABLES.items())
        + _defaults()
        + _others()
        + IAM
        + PROTOCOLS
    )


def main() -> int:
    """Write the page, or with --check compare it."""
    parser = argparse.ArgumentParser(description="Write docs/api.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    if not parser.parse_args().check:
        TARGET.write_text(page(), encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == page():
        return 0
    print(f"{TARGET} is out of date: run python tools/make_api_page.py", file=sys.stderr)
    return 1


def _section(operation: str, members: tuple[Member, ...]) -> str:
    return f"\n## {operation}\n\n{COLUMNS}" + "".join(_row(member) for member in members)


def _defaults() -> str:
    told = "".join(f"| `{path}` | `{json.dumps(value)}` |\n" for path, value in TOLD.items())
    otherwise = "".join(f"| `{path}` | {why} |\n" for path, why in TOLD_OTHERWISE.items())
    return DEFAULTS + told + OTHERWISE + otherwise + PROFILER


def _others() -> str:
    rows = []
    for (service, operation), reasons in UNREAD.items():
        for why in dict.fromkeys(reasons.values()):
            members = ", ".join(f"`{member}`" for member, reason in reasons.items() if reason == why)
            rows.append(f"| {service}: {operation} | {members} | {why} |\n")
    return OTHERS + "".join(rows)


def _row(member: Member) -> str:
    decisions = ["honoured"] if member.is_honoured else []
    decisions += [_decision(rule) for rule in member.rules]
    words = [member.says] if member.is_honoured else []
    words += [_spoken(rule, member) for rule in member.rules]
    return f"| `{member.path}` | {'; '.join(decisions)} | {_cell('<br>'.join(words))} |\n"


def _decision(rule: Rule) -> str:
    word = "**refused**" if rule.outcome is Outcome.REFUSED else "warned"
    return f"{word}: {rule.when}" if rule.when else word


def _spoken(rule: Rule, member: Member) -> str:
    sentence = rule.sentence.replace("{item!r}", "'...'").replace("{item}", "...").replace("{value}", "...")
    return f'"{sentence.format(path=member.path.replace("[]", ""), place=HERE)}"'


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
