"""The AWS wire: requests in, answers and errors out, driven by botocore's own service models.

In the order in which a request passes: `messages` (what the HTTP server hands over), `routing` (which operation),
`signatures` (who sent it), `parsing` (body to dict), `validation` (the model's constraints), and on the way back
`serializing` (dict or error to an answer). `models` holds what the others read of botocore; no operation, member or
constraint is listed by hand.
"""
