"""Patches of other libraries' trainers, so that they work with our data and model parallelism and without a GPU.

Where: `compat.clary_autoload` calls `install` at the end of `import torch`, in ranks and in jobs whose distribution
needs patches. No library is changed on disk, and no module is imported that the program does not import itself.

    importing           patches a module of a library when a program imports it
    devices             DistributedDataParallel on a host without a GPU
    arguments           the method in which `transformers.TrainingArguments` chooses a device
    transformers_data   transformers' Trainer under smdistributed.dataparallel
    transformers_model  transformers' Trainer under smdistributed.modelparallel
    accelerate_cpu      accelerate with DeepSpeed on a host without a GPU
    composer_nodes      Composer, which reads the number of a host from another variable
    deepspeed_nvme      DeepSpeed's offload to NVMe on a host without libaio
    installing          the patches that a job needs
"""

from clary.train.trainers.installing import install

__all__ = ["install"]
