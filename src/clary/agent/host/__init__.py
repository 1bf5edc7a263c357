"""Processes of a program inside one host of a job: started, signalled, counted, ended.

Where: the supervisor describes a host (`sandbox.Sandbox`), starts the launcher's processes in it
(`program.Program.start`) and polls the `Program` for exits; `standby.StandbyHost` makes a host before its program is
known. These, `cgroups` and `support` run in the agent; `init` and what it imports run in the first process of the host,
outside of the agent, and import as little as they can because their start-up time is the job's. This file has no
imports for the same reason.
"""
