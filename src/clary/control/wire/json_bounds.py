"""How many values a JSON document may have, counted before it is parsed.

Where: `json_parsing` and the service's own pages ask before they parse. Python makes an object of each value: 8 MB of
`[],` cost half a second of a core, in one call that lets no other thread run, and 500 MB. Counting costs 1 ms a MB.

Commas and brackets within a text do not count. Counting all of them is fast and gives an upper bound; only a body that
is above it is read with its texts left out, up to the limit. Brackets count where they close: those that never do end
the parser at its bound on depth.
"""

from __future__ import annotations

import re

MAX_VALUES = 1 << 17  # of a request to AWS's API; the longest that clients send has a tenth of it
# A text, closed or not, or what ends a value. Possessive, so that no text makes it look twice.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\]},]', re.DOTALL)
_QUOTE = b'"'[0]


def has_more_values(body: bytes, most: int = MAX_VALUES) -> bool:
    """Return whether a JSON document has more values than `most`; the answer for other bytes means nothing."""
    if body.count(b",") + body.count(b"]") + body.count(b"}") <= most:
        return False
    num_values = num_texts = 0
    for found in _TOKEN.finditer(body):
        if body[found.start()] == _QUOTE:
            num_texts += 1
        else:
            num_values += 1
        if num_values > most or num_texts > 2 * most + 1:  # names of members are texts too
            return True
    return False
