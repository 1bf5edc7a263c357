"""SMDDP for torch: `torch_smddp` for SMDDP 1.4 and later, `distributed` and `parallel` for older scripts."""
