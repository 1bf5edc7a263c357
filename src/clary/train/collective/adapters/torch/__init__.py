"""The backend `smddp` of torch.distributed: a ProcessGroup in Python over a core (docs/adr/0009).

registration    registers the backend at the end of `import torch`; imports nothing heavy
process_group   SmddpProcessGroup: torch's calls turned into calls of a core
tensors         checks and addresses of the tensors that a core can take
work            the objects that torch waits on
completion      the thread that ends futures of operations under way
store           torch's key-value store with the bootstrap's interface
devices         the path of CUDA tensors: NCCL, or staging through host memory
staging         CUDA tensors by way of pinned host memory
keeping         works that outlive their callers, for torch before its PyWorkHolder
untraced        keeps torch.compile out of these files
"""
