"""Grants of the key of a job's attempts, read from the job's request. Pure.

Where: `server.job_keys` calls `grants_of` when it receives a request signed with an attempt's key.

The owner wrote the request, so every s3:// address in its hyperparameters, arguments and environment counts as named by
the owner: functions sent by `@remote`, scripts with `--train s3://...` and the like read and write there. Members that
the SDKs themselves add to requests grant no more than necessary. A channel's manifest is never granted for writing: it
names objects that agents then read for the job.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from clary.contract.settings import hyperparameters as hps
from clary.control.jobs.job_request import JobRequest
from clary.control.jobs.training_job import TrainingJob
from clary.control.permissions.grants import Grants, Place

COMPONENT_SUFFIX, TRIAL_SUFFIX = "-aws-training-job", "-aws-trial"
RUN_GROUP = "default-run-group-{}"  # trial to which `sagemaker.experiments.Run` adds an experiment's runs
ARTIFACTS_FOLDER = "trial-component-artifacts"  # folder of the default bucket in which Run stores files
RUN_ARGUMENT = "--run_in_context"  # argument of functions that `@remote` sends within a Run
MAX_TEXT = 1 << 20  # characters of a text that are searched for addresses

# An address that extends to the end of the text, to a quote or another character that no address has, or to the gap
# before the next address.
_WHOLE = re.compile(
    r"""s3[an]?://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/[^"'`\\<>|\r\n]*?)?(?=$|["'`\\<>|\r\n]|[\s,;]+s3)"""
)
_WORD = re.compile(
    r"""s3[an]?://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:(/[^\s"'`\\<>|,;)\]}]*)|(?=[\s"'`\\<>|,;)\]}]|$))"""
)
_WILDCARD = re.compile(r"[*?\[{]")
# Members with an S3 path below which each job has a folder of its own name.
_OUTPUTS = ("OutputDataConfig", "DebugHookConfig", "TensorBoardOutputConfig", "ProfilerConfig")
_RULES = ("DebugRuleConfigurations", "ProfilerRuleConfigurations")


def grants_of(job: TrainingJob, *, default_bucket: str) -> Grants:
    """Return the grants of a job.

    Args:
        job: the job whose request names places in S3.
        default_bucket: default bucket of the SDKs, where runs of experiments store files.
    """
    request = JobRequest(job.request)
    config = job.request.get("ExperimentConfig") or {}
    experiments = {str(config.get("ExperimentName") or "")}
    components = {job.name + COMPONENT_SUFFIX, str(config.get("RunName") or "")}
    for experiment, run in _runs_around(request):
        experiments.add(experiment)
        components |= {run, f"{experiment}-{run}"}  # the second is the name that Run gives its component
    artifacts = [Place(default_bucket, f"{ARTIFACTS_FOLDER}/{name}") for name in sorted(components) if name]
    trials = {job.name + TRIAL_SUFFIX, str(config.get("TrialName") or "")}
    trials |= {RUN_GROUP.format(experiment) for experiment in experiments if experiment}
    return Grants(
        job_name=job.name,
        job_arn=job.arn,
        job_id=f"{job.name}:{job.created_at.isoformat()}",
        reads=_unique(_reads(request)),
        writes=_unique([*_outputs(request), *artifacts, *_named(request)]),
        manifests=frozenset(_manifests(request)),
        experiments=_lowered(experiments),
        trials=_lowered(trials),
        components=_lowered(components),
    )


def output_buckets(request: JobRequest) -> tuple[str, ...]:
    """Return the buckets that members of a job's request name for output, each once."""
    return tuple(dict.fromkeys(place.bucket for place in _unique(_outputs(request))))


def places_in(text: str) -> Iterator[Place]:
    """Yield every place that a text names as s3://bucket/key, also within JSON and command lines."""
    for pattern in (_WHOLE, _WORD):
        for found in pattern.finditer(text[:MAX_TEXT]):
            key = (found[2] or "").removeprefix("/").rstrip()
            wildcard = _WILDCARD.search(key)
            # For s3://bucket/data/*.csv the place is the folder.
            yield _folder(found[1], key if wildcard is None else key[: wildcard.start()].rpartition("/")[0])


def _reads(request: JobRequest) -> Iterator[Place]:
    for channel in request.channels:
        if channel.s3_uri is not None:
            # A channel with a prefix delivers the objects whose keys begin with it; a manifest is one object.
            yield _place(channel.s3_uri, is_prefix=channel.s3_data_type == "S3Prefix")
    for value in _text_of(request.hyperparameters.get(hps.SUBMIT_DIRECTORY, "")):
        yield from places_in(value)
    for member in _RULES:
        for rule in request.request.get(member) or ():
            yield from places_in(json.dumps(rule.get("RuleParameters") or {}))


def _manifests(request: JobRequest) -> Iterator[tuple[str, str]]:
    for channel in request.channels:
        if channel.s3_uri is not None and channel.s3_data_type != "S3Prefix":
            bucket, _, key = channel.s3_uri.partition("://")[2].partition("/")
            yield bucket, key


def _outputs(request: JobRequest) -> Iterator[Place]:
    configs: list[Any] = [request.request.get(member) for member in _OUTPUTS]
    for member in _RULES:
        configs += request.request.get(member) or ()
    for config in configs:
        uri = (config or {}).get("S3OutputPath")
        if uri:
            yield _place(f"{uri.rstrip('/')}/{request.name}")
    if request.checkpoint_s3_uri:
        yield _place(request.checkpoint_s3_uri)


def _named(request: JobRequest) -> Iterator[Place]:
    texts = [value for name, value in request.hyperparameters.items() if name not in hps.TOOLKIT_KEYS]
    texts += request.environment.values()
    texts += request.command or ()
    texts += request.request.get("AlgorithmSpecification", {}).get("ContainerArguments") or ()
    for text in texts:
        for value in _text_of(text):
            yield from places_in(value)


def _runs_around(request: JobRequest) -> Iterator[tuple[str, str]]:
    """Yield experiment and run in which a function was sent by `@remote`, as the SDKs pass them to its job."""
    arguments = request.request.get("AlgorithmSpecification", {}).get("ContainerArguments") or ()
    for name, value in itertools.pairwise(arguments):
        if name == RUN_ARGUMENT:
            try:
                context = json.loads(value)
            except ValueError:
                continue
            if isinstance(context, dict) and context.get("experiment_name") and context.get("run_name"):
                yield str(context["experiment_name"]), str(context["run_name"])


def _text_of(value: str) -> Iterator[str]:
    """Yield the string that a value encodes as JSON, as the SDKs write strings, or else the value itself."""
    parsed = hps.parse_value(value)
    yield parsed if isinstance(parsed, str) else value


def _place(uri: str, *, is_prefix: bool = False) -> Place:
    bucket, _, key = uri.partition("://")[2].partition("/")
    return Place(bucket, key, True) if is_prefix else _folder(bucket, key)


def _folder(bucket: str, key: str) -> Place:
    """Return the place of a key and of all keys below it; `//` names the keys that begin with a slash, not all keys."""
    stripped = key.rstrip("/")
    return Place(bucket, stripped) if stripped or not key else Place(bucket, key, True)


def _lowered(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names if name)


def _unique(places: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(dict.fromkeys(place for place in places if place.bucket))
