"""What stands under `torch.sagemaker.distributed`."""
