"""Expert parallelism: the experts of a layer lie on different ranks, and tokens go to them.

`spreading` takes a model apart; `layer` is what runs in its place, `routing` says which tokens go where, `dispatch`
moves them; `groups` and `wrapping` tell FSDP over which ranks experts are cut; `states` makes states whole.
"""
