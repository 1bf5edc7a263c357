"""Rule configurations of SDK v2's smdebug_rulesconfig, printed as one line of JSON; runs in that SDK's environment."""

import inspect
import json

from smdebug_rulesconfig import debugger_rules
from smdebug_rulesconfig.debugger_rules import _collections, _utils, builtin_rules
from smdebug_rulesconfig.profiler_rules import rules

makers = inspect.getmembers(builtin_rules, lambda member: inspect.isfunction(member) and member.__name__[0] != "_")
kinds = inspect.getmembers(rules, lambda member: inspect.isclass(member) and issubclass(member, rules.ProfilerRuleBase))
with open(f"{debugger_rules.__path__[0]}/{_utils.COLLECTION_CONFIG_FILE}") as file:
    collections = {name: _collections.get_collection(name) for name in json.load(file)}
print(
    json.dumps(
        {
            "debugger": {name: make() for name, make in makers},
            "collections": collections,
            "profiler": {
                name: {
                    key: parameter.default
                    for key, parameter in inspect.signature(kind).parameters.items()
                    if parameter.kind is not parameter.VAR_KEYWORD
                }
                for name, kind in kinds
                if kind is not rules.ProfilerRuleBase
            },
        }
    )
)
