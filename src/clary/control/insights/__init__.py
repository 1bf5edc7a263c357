"""Queries over log lines in the language of CloudWatch Logs Insights: read, planned and evaluated; pure.

`reading` makes commands of a text, `planning` makes a plan of commands, `evaluation` gives lines to a plan. Regular
expressions run as automata (`automaton`), in time that grows with a line's length alone. docs/adr/0036.
"""
