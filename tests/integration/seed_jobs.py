"""Listings that SDK v2 runs against the session's service, in the order in which their jobs start."""

from __future__ import annotations

from pathlib import Path

from seed_listings import Listing, printed, program

RANKS = "ranks_program.py"
TWO_HOSTS = {"instance_count": 2}
OLDER = {"framework_version": "1.13.1", "py_version": "py39"}  # the last version for which the SDK has a compiler
IMAGE = {"image_uri": "registry.example/team/bring-your-own:1"}
WRAPS_TOP_LEVEL, ESTIMATOR_TOP_LEVEL = printed("smddp_wrapped_top_level.txt").split("\n\n")
RIGHT_SMDDP = {
    "'smdistributed_dataparallel': {'enabled': True}": "'smdistributed': {'dataparallel': {'enabled': True}}"
}
MPI_BESIDE = '\ndistribution["mpi"] = {"enabled": True, "processes_per_host": 8}\n'
HOROVOD_BY_MPI = {
    "from sagemaker.horovod import Horovod": "from sagemaker.pytorch import PyTorch",
    "Horovod(": "PyTorch(\n    distribution={'mpi': {'enabled': True, 'processes_per_host': 2}},",
    "instance_count=8": "instance_count=1",
}


def estimator_listings(digits: Path) -> dict[str, Listing]:
    """Return name -> listing; `digits` is the folder with MNIST's files."""
    ranks = program(RANKS)
    wrapped = program("smddp_program.py", printed("smddp_wrapped.txt"))
    wrapped_top_level = program("smddp_program.py", f"{WRAPS_TOP_LEVEL}\n")
    stepped = program("smp_program.py", printed("smp_step.txt"))
    return {
        "smp_and_mpi": Listing(text=printed("smp.txt") + MPI_BESIDE, program=stepped),
        "smp": Listing(text=printed("smp.txt"), program=stepped),
        "smddp": Listing(text=printed("smddp.txt"), program=wrapped, rest={"environment": {"SEED_JOINS_ITSELF": "1"}}),
        "smddp_top_level": Listing(text=printed("smddp_top_level.txt"), program=ranks, rest=TWO_HOSTS),
        "wraps_top_level": Listing(text=ESTIMATOR_TOP_LEVEL, program=wrapped_top_level),
        "wraps_as_meant": Listing(text=ESTIMATOR_TOP_LEVEL, program=wrapped_top_level, changes=RIGHT_SMDDP),
        "pytorchx": Listing(text=printed("pytorchx.txt"), program=ranks, rest=TWO_HOSTS),
        "torchrun": Listing(text=printed("torchrun.txt"), program=ranks),
        "digits": Listing(text=printed("torchrun.txt"), program=program("trained_program.py"), beside=str(digits)),
        "smp_top_level": Listing(text=printed("smp_top_level.txt"), program=ranks),
        "smp_top_level_in_python": Listing(
            text=printed("smp_top_level.txt"), program=ranks, changes={"// additional": "# additional"}, rest=TWO_HOSTS
        ),
        "smp_top_level_short": Listing(text=printed("smp_top_level_short.txt"), program=ranks, rest=TWO_HOSTS),
        "horovod": Listing(text=printed("horovod_estimator.txt"), program=ranks),
        "horovod_by_mpi": Listing(
            text=printed("horovod_estimator.txt"), program=program("horovod_program.py"), changes=HOROVOD_BY_MPI
        ),
        "xla_off": Listing(text=printed("mpi_estimator.txt"), program=ranks),
        "compiler": Listing(text=printed("compiler.txt"), program=ranks),
        "compiler_by_its_class": Listing(
            text=printed("compiler.txt"),
            program=ranks,
            changes={"{'enabled': True, 'debug': False}": "TrainingCompilerConfig(enabled=True, debug=False)"},
            rest={**OLDER, "instance_type": "ml.p3.2xlarge"},
        ),
        "spot": Listing(text=printed("spot.txt"), program=ranks),
        "amp": Listing(text=printed("amp.txt"), program=program("amp_program.py", printed("amp_names.txt"))),
        "checkpoints": Listing(text=printed("checkpoints.txt"), program=program("checkpoint_program.py"), rest=IMAGE),
        "checkpoints_again": Listing(
            text=printed("checkpoints.txt"), program=program("checkpoint_program.py"), rest=IMAGE, after="checkpoints"
        ),
        "profiler_rules": Listing(text=_with_rules(), program=ranks),
        "profiler_rules_by_name": Listing(text=_with_rules(), program=program("measured_program.py"), changes=BY_NAME),
    }


BY_NAME = {
    "ProfilerRule.sagemaker(rule_configs.HardwareUtilization())": "ProfilerRule(name='HardwareUtilization', "
    "image_uri='DEFAULT_RULE_EVALUATOR_IMAGE', instance_type=None, container_local_output_path=None, "
    "s3_output_path=None, volume_size_in_gb=None, rule_parameters={'rule_to_invoke': 'HardwareUtilization'})"
}


def _with_rules() -> str:
    imported = "from sagemaker.debugger import ProfilerRule, rule_configs\n\n"
    return f"{imported}{printed('profiler_rules.txt')}estimator = PyTorch(..., rules=rules)\n"
