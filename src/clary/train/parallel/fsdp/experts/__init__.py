"""Expert parallelism: the experts of a layer lie on different ranks, and tokens go to them.

`spreading` divides a model's experts over the ranks; `layer` has the layers that replace the model's; `routing` chooses
each token's experts; `dispatch` moves tokens; `groups` and `wrapping` tell FSDP over which ranks experts are cut;
`states` makes states whole.
"""
