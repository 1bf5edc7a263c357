"""The train side under the names of other libraries, mostly re-exports of `clary.train`.

The folder also has Horovod's interfaces for each framework, descriptions of the job (`clary_toolkit`), and modules that
run when torch is imported. A job finds this folder's packages last on its PYTHONPATH
(`agent.environments.train_library`). They are never installed at top level, because AWS's images own these names.
`smdistributed` has no `__init__`: it is a namespace package, to which other packages may contribute.
"""
