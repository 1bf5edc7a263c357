"""SDK v3: submits a job whose ranks wait for a signal, with the driver that the first argument names, and exits."""

import sys

from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode
from sagemaker.train.distributed import MPI, Torchrun

drivers = {"none": None, "torchrun": Torchrun(process_count_per_node=2), "mpi": MPI(process_count_per_node=4)}
trainer = ModelTrainer(
    training_image="registry.example/team/bring-your-own:1",
    role=ROLE,
    compute=Compute(instance_type=CPU_TYPE, instance_count=2),
    source_code=SourceCode(source_dir=SOURCE, entry_script="stopped.py"),
    distributed=drivers[sys.argv[1]],
    base_job_name=f"v3-signals-{sys.argv[1]}",
)
trainer.train(wait=False)
report(name=trainer._latest_training_job.training_job_name)
