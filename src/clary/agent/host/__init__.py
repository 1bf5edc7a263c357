"""Processes of a program inside one host of a job: start, signals, counters, end.

Where: the supervisor describes a host (`sandbox.Sandbox`), starts the launcher's processes in it
(`program.Program.start`) and polls the `Program` for exits; `standby.StandbyHost` makes a host before its program is
known. These modules and `limits.cgroups` run in the agent. `init` and its imports run in the first process of the host,
outside of the agent; they import as little as possible, because their start-up time delays the job. This file has no
imports for the same reason.
"""
