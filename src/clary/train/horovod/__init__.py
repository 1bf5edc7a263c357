"""Horovod's operations without a framework: ranks submit named tensors in any order, and all ranks get the results.

world         the process's place among all ranks, process sets, start and end
engine        one process set: takes requests, agrees with the other ranks on the ready requests, and runs them
readiness     the tensors that run next, decided from the announcements of all ranks
operations    runs ready tensors over a `collective.communicator`

Where: `horovod.torch`, `horovod.tensorflow` and `horovod.mxnet` of `clary.compat` turn tensors into requests.
Source: Horovod 0.28.1, its documentation and the behaviour that its tests expect; none of its code is here.
"""
