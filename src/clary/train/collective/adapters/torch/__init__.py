"""The backend `smddp` of torch.distributed: a ProcessGroup in Python over a core (docs/adr/0009).

registration    what torch's `torch.backends` entry point calls; imports nothing heavy
process_group   SmddpProcessGroup: torch's calls turned into calls of a core
tensors         which tensors a core can take, and where they lie
work            what torch waits on
completion      the thread that ends futures of operations under way
store           torch's key-value store as the bootstrap wants it
devices         which path CUDA tensors take: NCCL, or staging through host memory
staging         CUDA tensors by way of pinned host memory
keeping         what torch before its PyWorkHolder needs: works that outlive their callers
untraced        keeps torch.compile out of these files
"""
