"""Queries over log lines in the language of CloudWatch Logs Insights: read, planned and evaluated; pure.

`reading` parses a text into commands, `planning` turns commands into a plan, `evaluation` runs a plan over lines.
Regular expressions run as automata (`automaton`), in time that grows with a line's length alone. docs/adr/0036.
"""
