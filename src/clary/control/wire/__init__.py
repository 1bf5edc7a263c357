"""The AWS wire protocol: parses requests and serializes answers and errors according to botocore's service models.

A request passes through these modules in order: `messages` (requests of the HTTP server), `routing` (finds the
operation), `signatures` (authenticates the sender), `parsing` (body to dict) and `validation` (the model's
constraints); `serializing` then turns a dict or error into an answer. `models` gives access to botocore's models; no
operation, member or constraint is listed by hand.
"""
