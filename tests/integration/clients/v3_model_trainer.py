"""SDK v3: ModelTrainer in the form that the first argument names."""

import logging
import os
import sys
import tempfile

from common_client import CPU_TYPE, ROLE, SOURCE, report
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode
from sagemaker.train.distributed import MPI, Torchrun

logging.basicConfig(level=logging.INFO)  # the SDK logs what a job prints
form = sys.argv[1]
forms = {
    "none": {"source_code": SourceCode(source_dir=SOURCE, entry_script="facts.py")},
    "torchrun": {
        "source_code": SourceCode(source_dir=SOURCE, entry_script="allreduce.py"),
        "distributed": Torchrun(process_count_per_node=2),
    },
    "mpi": {
        "source_code": SourceCode(source_dir=SOURCE, entry_script="mpi_sum.py"),
        "distributed": MPI(process_count_per_node=2),
    },
    "mpi-two-hosts": {
        "source_code": SourceCode(source_dir=SOURCE, entry_script="mpi_sum.py"),
        "distributed": MPI(process_count_per_node=2),
    },
    "command": {"source_code": SourceCode(source_dir=SOURCE, command="echo command says $MARKER; python facts.py")},
    "local-data": {"source_code": SourceCode(source_dir=SOURCE, entry_script="facts.py")},
}
folder = tempfile.mkdtemp()
with open(os.path.join(folder, "a.txt"), "w") as file:
    file.write("a")
trainer = ModelTrainer(
    training_image="registry.example/team/bring-your-own:1",
    role=ROLE,
    compute=Compute(instance_type=CPU_TYPE, instance_count=1 if form in ("mpi", "command") else 2),
    hyperparameters={"learning_rate": 0.5, "text": "abc"},
    environment={"MARKER": "set by the user"},
    base_job_name=f"v3-{form}",
    **forms[form],
)
inputs = [InputData(channel_name="local", data_source=folder)] if form == "local-data" else None
trainer.train(input_data_config=inputs, wait=True, logs=True)
job = trainer._latest_training_job
report(name=job.training_job_name, status=job.training_job_status)
