"""The backend `smddp` of torch.distributed: a ProcessGroup in Python over a core (docs/adr/0009).

registration    registers the backend at the end of `import torch`; imports nothing heavy
store_opening   has ranks wait for the store of rank 0
backend_name    the name under which torch knows the backend
creation        forms a group: connections, a core, a ProcessGroup
process_group   SmddpProcessGroup: torch's interface of a group besides its collectives
collectives     torch's collectives turned into calls of a core
calls           torch's two spellings of a call
tensors         checks and addresses of the tensors that a core can take
work            the objects that torch waits on
completion      the thread that ends futures of operations under way
store           torch's key-value store with the bootstrap's interface
devices         the path of CUDA tensors: NCCL, or staging through host memory
staging         CUDA tensors by way of pinned host memory
keeping         keeps works alive for C++, in torch before its PyWorkHolder
untraced        keeps torch.compile out of these files
compute_trace   reports forward and backward passes to a trace
overlap, compression, local_update, prefetch    called by scripts, for less or earlier communication
"""
