"""The train side under other people's names: thin re-exports of `clary.train`.

A job finds what is in this folder last on its PYTHONPATH (`agent.environments.train_library`). Nothing here is ever
installed at top level, because AWS's images own these names. `smdistributed` has no `__init__`: it is a namespace, of
which other packages may hold other parts.
"""
