"""Debugger rules of a job: the request's rules, and the actions on their verdicts."""
