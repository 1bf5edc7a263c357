"""Names of the variable and of the made-up GPU."""

VARIABLE = "CLARY_CUDA_ON_CPU"
NAME = f"CPU ({VARIABLE}=1)"  # name of the made-up GPU
