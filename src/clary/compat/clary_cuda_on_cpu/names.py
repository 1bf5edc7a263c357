"""The names of this rehearsal."""

VARIABLE = "CLARY_CUDA_ON_CPU"
NAME = f"CPU ({VARIABLE}=1)"  # of the made up GPU
