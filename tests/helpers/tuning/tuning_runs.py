"""Tuning jobs through a `ControlPlane`: requests, trials that report values and end, responses parsed by botocore."""

import botocore.session
from botocore.parsers import create_parser
from botocore.validate import ParamValidator

from clary.contract.agent_protocol import HostPhase
from clary.control.jobs.training_job import FinalMetric
from clary.control.wire.models import Protocol, service
from clary.control.wire.serializing import serialize

METRIC = "loss"
MODEL = botocore.session.get_session().get_service_model("sagemaker")
RESOURCES = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
RANGES = {
    "ContinuousParameterRanges": [{"Name": "lr", "MinValue": "0.001", "MaxValue": "1"}],
    "IntegerParameterRanges": [{"Name": "layers", "MinValue": "1", "MaxValue": "4"}],
}
FEW = {
    "CategoricalParameterRanges": [{"Name": "opt", "Values": ["sgd", "adam"]}, {"Name": "act", "Values": ["a", "b"]}]
}


def definition_of(**members):
    """Return a training job definition; a member that is None is removed."""
    definition = {
        "RoleArn": "arn:aws:iam::000000000000:role/R",
        "AlgorithmSpecification": {
            "TrainingImage": "generic:1",
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": METRIC, "Regex": "loss=([0-9.]+)"}],
        },
        "ResourceConfig": RESOURCES,
        "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
        "StaticHyperParameters": {"epochs": "5"},
        **members,
    }
    return {name: value for name, value in definition.items() if value is not None}


def request_of(name="tuned", *, most=4, parallel=2, runtime_s=None, criteria=None, config=None, **members):
    """Return a request that minimizes the loss; most=None omits the number of trials."""
    limits = {"MaxParallelTrainingJobs": parallel}
    limits |= {} if most is None else {"MaxNumberOfTrainingJobs": most}
    limits |= {} if runtime_s is None else {"MaxRuntimeInSeconds": runtime_s}
    configuration = {
        "Strategy": "Random",
        "ResourceLimits": limits,
        "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": METRIC},
        "ParameterRanges": RANGES,
        **({} if criteria is None else {"TuningJobCompletionCriteria": criteria}),
        **(config or {}),
    }
    request = {
        "HyperParameterTuningJobName": name,
        "HyperParameterTuningJobConfig": {key: value for key, value in configuration.items() if value is not None},
        "TrainingJobDefinition": definition_of(),
        **members,
    }
    return {key: value for key, value in request.items() if value is not None}


class TuningRuns:
    """Calls and trials of one control plane.

    Args:
        plane: executes the calls.
    """

    def __init__(self, plane):
        self.plane = plane

    async def call(self, operation, **params):
        """Call an operation with a request that botocore accepts; return the response as botocore parses it."""
        report = ParamValidator().validate(params, MODEL.operation_model(operation).input_shape)
        assert not report.has_errors(), report.generate_report()
        answer = await self.plane.call("sagemaker", operation, **params)
        return as_botocore_reads(operation, answer)

    async def create(self, name="tuned", **options):
        """Create a tuning job and start its first trials; return its ARN."""
        answer = await self.call("CreateHyperParameterTuningJob", **request_of(name, **options))
        await self.look()
        return answer["HyperParameterTuningJobArn"]

    async def describe(self, name="tuned"):
        return await self.call("DescribeHyperParameterTuningJob", HyperParameterTuningJobName=name)

    async def status(self, name="tuned"):
        return (await self.describe(name))["HyperParameterTuningJobStatus"]

    async def stop(self, name="tuned"):
        await self.call("StopHyperParameterTuningJob", HyperParameterTuningJobName=name)
        await self.look()

    async def trials(self, name="tuned"):
        return await self.plane.store.tuning.trials(name)

    async def open_names(self, name="tuned"):
        """Return the names of the training jobs that have not ended, by trial number."""
        return [one.job_name for one in await self.trials(name) if not one.is_over]

    async def look(self):
        """Run a pass of the tuning keeper, place training jobs, and run the keeper again."""
        await self.plane.tuning_passes()
        await self.plane.passes(2)
        await self.plane.tuning_passes()

    async def tell(self, name, *values, metric=METRIC):
        """Report values of the objective for a training job."""
        for value in values:
            self.plane.clock.advance(0.01)
            found = [FinalMetric(name=metric, value=value, at=self.plane.clock.now())]
            await self.plane.store.add_metrics(name, found)
            await self.plane.hub.record_metrics(name, found)

    async def run(self, name):
        """Advance a placed training job until its program runs; return its agent."""
        agent = self.plane.agent(name)
        for phase in (HostPhase.PREPARING, HostPhase.PREPARED, HostPhase.RUNNING):
            await agent.report(phase)
        return agent

    async def end(self, agent, *, exit_code=0):
        """End the program of a training job and release its hosts, without a pass of the keeper."""
        for phase in (HostPhase.EXITED, HostPhase.DONE):
            uploaded = agent.model_uris(phase)
            await agent.report(phase, exits=(self.plane.exit_of(exit_code),), uploaded=uploaded)
        self.plane.engine.end_all_agents(agent.name)
        await self.plane.passes(2)

    async def finish(self, name, *values, exit_code=0, metric=METRIC):
        """Run a training job, report values, end it, and run the keeper."""
        agent = await self.run(name)
        await self.tell(name, *values, metric=metric)
        await self.end(agent, exit_code=exit_code)
        await self.look()

    async def finish_all(self, name="tuned", *, value_of=lambda trial: float(trial.number), most=200):
        """End trials one after the other, oldest first, until the tuning job has ended."""
        for _ in range(most):
            trials = [one for one in await self.trials(name) if not one.is_over]
            if not trials:
                assert (await self.plane.store.tuning.get(name)).is_terminal, "nothing runs, and it is not over"
                return
            await self.finish(trials[0].job_name, value_of(trials[0]))
        raise AssertionError("there is no end")


def as_botocore_reads(operation_name, answer):
    """Serialise a response, parse it by botocore and return it; all required members must be present."""
    operation = service("sagemaker").operation(operation_name, Protocol.JSON_1_1)
    response = serialize(operation, answer, request_id="R")
    raw = {"status_code": response.status, "headers": dict(response.headers), "body": response.body}
    shape = MODEL.operation_model(operation_name).output_shape
    parsed = create_parser("json").parse(raw, shape)
    if shape is not None:
        _require(parsed, shape, operation_name)
    return parsed


def _require(value, shape, path):
    """Fail if a required member is absent or a value is not in its enumeration, at any depth."""
    if shape.type_name == "structure":
        missing = [name for name in shape.required_members if name not in value]
        assert not missing, f"{path} lacks {missing}"
        for name, inner in value.items():
            if name in shape.members:
                _require(inner, shape.members[name], f"{path}.{name}")
    elif shape.type_name == "list":
        for place, inner in enumerate(value):
            _require(inner, shape.member, f"{path}[{place}]")
    elif shape.type_name == "string" and shape.enum:
        assert value in shape.enum, f"{path}: {value!r}"
