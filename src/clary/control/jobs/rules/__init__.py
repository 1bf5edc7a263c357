"""Debugger rules of a job: what a request asks for, and what their verdicts do."""
