"""The list of the job's hosts for launchers inside the program; `deepspeed` on PATH uses it to start ranks.

Where: processes of hosts that take part in the distribution get the list as one variable; see
`shims/clary_deepspeed.py`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

HOST_LIST_VARIABLE = "CLARY_HOST_LIST"


def host_list_variables(hosts: Sequence[tuple[str, str, int]], *, here: str, port: int) -> dict[str, str]:
    """Return the variable; empty for a host that takes no part in the distribution.

    Args:
        hosts: name, address and number of ranks, in the order of ranks.
        here: name of this host.
        port: port of the store of rank 0.
    """
    if here not in [name for name, _, _ in hosts]:
        return {}
    return {HOST_LIST_VARIABLE: json.dumps({"hosts": hosts, "here": here, "port": port})}
