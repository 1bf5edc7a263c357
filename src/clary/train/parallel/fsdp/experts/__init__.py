"""Expert parallelism: the experts of a layer lie on different ranks, and tokens are sent to their experts' ranks.

`spreading` divides a model's experts over the ranks; `layer` holds the classes that replace the model's layers;
`routing` chooses each token's experts; `dispatch` moves tokens; `groups` and `wrapping` tell FSDP over which ranks to
shard experts; `states` joins states.
"""
