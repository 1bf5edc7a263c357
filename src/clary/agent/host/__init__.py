"""Processes of a program inside one host of a job: started, signalled, counted, ended.

Where: the supervisor describes a host (`sandbox.Sandbox`), starts a launcher's processes (`program.Program.start`)
and asks it for exits; `standby.StandbyHost` makes a host ahead of its program. These, `cgroups` and `support` run in
the agent; `init` and what it imports run in the first process of the host, outside of the agent, and import as little
as they can because their start-up time is the job's. This file has no imports for the same reason.
"""
