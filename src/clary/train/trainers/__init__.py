"""Mends trainers of other libraries, so that they train over our data and model parallelism and without a GPU.

Where: `compat.clary_autoload` calls `install` at the end of `import torch`, in ranks and in jobs whose distribution
needs it. Nothing of a library is changed on disk, and nothing is imported that the program does not import itself.

    importing           mends a module of a library when a program imports it
    devices             DistributedDataParallel where a host has no GPU
    arguments           where `transformers.TrainingArguments` chooses a device
    transformers_data   transformers' Trainer under smdistributed.dataparallel
    transformers_model  the same under smdistributed.modelparallel
    accelerate_cpu      accelerate with DeepSpeed where a host has no GPU
    composer_nodes      Composer, which calls the number of a host otherwise
    deepspeed_nvme      DeepSpeed's offload to NVMe where a host has no libaio
    installing          which of them a job needs
"""

from clary.train.trainers.installing import install

__all__ = ["install"]
