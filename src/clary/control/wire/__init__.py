"""The AWS wire: reads requests and writes answers and errors, by botocore's own service models.

A request passes in this order: `messages` (requests of the HTTP server), `routing` (finds the operation), `signatures`
(finds the sender), `parsing` (body to dict), `validation` (the model's constraints), and on the way back `serializing`
(dict or error to an answer). `models` gives access to botocore's models; no operation, member or constraint is listed
by hand.
"""
