"""Counts the values of a JSON document before it is parsed, to bound their number.

Where: `json_parsing` and the service's own pages call it before they parse. Python makes an object of each value: 8 MB
of `[],` cost 500 MB and half a second of a core, in one call that blocks all other threads. Counting costs 1 ms per MB.

Commas and brackets within a text do not count. Counting every comma and bracket is fast and gives an upper bound; only
a body whose bound exceeds the limit is scanned again without its texts, up to the limit. Only closing brackets are
counted: a body with many unclosed brackets exceeds the parser's limit on depth.
"""

from __future__ import annotations

import re

# maximum number of values in a request to AWS's API; the longest request of real clients has a tenth of it
MAX_VALUES = 1 << 17
# A text, closed or not, or the end of a value. Possessive, so that it never backtracks.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\]},]', re.DOTALL)
_QUOTE = b'"'[0]


def has_more_values(body: bytes, most: int = MAX_VALUES) -> bool:
    """Return whether a JSON document has more values than `most`; for other bytes the result is undefined."""
    if body.count(b",") + body.count(b"]") + body.count(b"}") <= most:
        return False
    num_values = num_texts = 0
    for found in _TOKEN.finditer(body):
        if body[found.start()] == _QUOTE:
            num_texts += 1
        else:
            num_values += 1
        if num_values > most or num_texts > 2 * most + 1:  # names of members are texts, too
            return True
    return False
