"""Errors of AWS's containers, for scripts that raise or catch them."""

from __future__ import annotations

from typing import Any


class ClientError(Exception):
    """The user's code or data is at fault, not the container."""


class SMTrainingCompilerConfigurationError(Exception):
    """The options of the compiler do not fit the job."""


class _CalledProcessError(ClientError):
    """A process has ended with an error: `cmd`, `return_code` (text), `output` and `extra_info`."""

    def __init__(self, cmd: Any, return_code: Any = None, output: Any = None, info: Any = None) -> None:
        super().__init__()
        self.cmd = cmd
        self.return_code = str(return_code)
        self.output = output
        self.extra_info = info

    def __str__(self) -> str:
        output = self.output.decode() if isinstance(self.output, bytes) else self.output
        lines = [f"{type(self).__name__}:", f"ExitCode {self.return_code}", f'ErrorMessage "{output or ""}"']
        if self.extra_info is not None:
            lines.append(f'ExtraInfo "{self.extra_info}"')
        return "\n".join([*lines, f'Command "{self.cmd}"'])


class InstallModuleError(_CalledProcessError):
    """A module could not be installed."""


class InstallRequirementsError(_CalledProcessError):
    """requirements.txt could not be installed."""


class ExecuteUserScriptError(_CalledProcessError):
    """The user's script has failed."""


class ImportModuleError(ClientError):
    """A module could not be imported."""


class ChannelDoesNotExistError(Exception):
    """The job has no channel of this name."""

    def __init__(self, channel_name: str) -> None:
        super().__init__(f"Channel {channel_name} is not a valid channel")


ChannelDoesNotExistException = ChannelDoesNotExistError  # its name in sagemaker-containers


class UnsupportedFormatError(Exception):
    """No encoder knows this media type."""

    def __init__(self, content_type: str) -> None:
        self.message = (
            f"Content type {content_type} is not supported: expected application/json, text/csv or application/x-npy, "
            "or convert the data yourself"
        )
        super().__init__(self.message)
