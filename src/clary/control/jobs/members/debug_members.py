"""Treatment of the members that name the debugger and the profiler. `create_table` includes these entries."""

from __future__ import annotations

from clary.control.jobs.members.member import Member, Use, honoured, not_here, warned, without_effect

# Images that both SDKs name without being asked, for Debugger's built-in rules; Clary runs its own rules instead.
RULE_IMAGES = ("sagemaker-debugger-rules", "sagemaker-debugger-rule-evaluator", "detailed-profiler-processing")
PROFILES = frozenset(
    (
        "DetailedProfilingConfig",
        "LocalPath",
        "RotateMaxFileSizeInBytes",
        "RotateFileCloseIntervalInSeconds",
        "FileOpenFailThreshold",
    )
)


def _is_image_of_somebody(use: Use) -> bool:
    repository = str(use.value).rpartition("/")[2].partition(":")[0].partition("@")[0]
    return repository not in RULE_IMAGES


def _rules_of(member: str, *, writes: str, is_report: bool) -> tuple[Member, ...]:
    """Return the rows of the rules of Debugger or of the profiler."""
    own_hosts = f"{member}: rules run beside the program: their InstanceType and VolumeSizeInGB have no effect"
    no_files = "rule {item}: {path} has no effect: rules over tensors write no files; describe has what they find"
    return (
        honoured(f"{member}[].RuleConfigurationName", "names the rule in statuses and findings; unique"),
        without_effect(f"{member}[].LocalPath", "rule {item}: LocalPath has no effect: rules write no files on hosts"),
        honoured(f"{member}[].S3OutputPath", writes)
        if is_report
        else without_effect(f"{member}[].S3OutputPath", no_files),
        honoured(
            f"{member}[].RuleEvaluatorImage",
            "rules that come with Debugger are Clary's own",
            warned(
                "rule {item}: RuleEvaluatorImage {value} is not run: built-in rules are Clary's own, and rules of "
                "yours run in the job's environment",
                when="images other than those that the SDKs name by themselves",
                holds=_is_image_of_somebody,
            ),
        ),
        without_effect(f"{member}[].InstanceType", own_hosts),
        without_effect(f"{member}[].VolumeSizeInGB", own_hosts),
        honoured(f"{member}[].RuleParameters", "parameters of the rule; actions: StopTraining"),
    )


PROFILER = (
    honoured("ProfilerConfig.S3OutputPath", "windows of the framework's profiler are stored below it"),
    honoured("ProfilerConfig.ProfilingIntervalInMilliseconds", "how often hosts measure themselves"),
    honoured(
        "ProfilerConfig.ProfilingParameters",
        "DetailedProfilingConfig: a window of the framework's profiler",
        warned(
            "ProfilerConfig.ProfilingParameters: only DetailedProfilingConfig has an effect; the other profiles of the "
            "framework are not taken",
            when="other keys that ask for profiles",
            holds=lambda use: bool(set(use.value) - PROFILES),
        ),
    ),
    honoured("ProfilerConfig.DisableProfiler", "hosts measure themselves rarely, and rules are not evaluated"),
    *_rules_of("ProfilerRuleConfigurations", writes="the profiler's report is stored below it", is_report=True),
)
REMOTE_DEBUG = (
    not_here(
        "RemoteDebugConfig.EnableRemoteDebug",
        "RemoteDebugConfig.EnableRemoteDebug is not supported: there is no Systems Manager here that opens a shell on "
        "a host. Leave it out; clary dump shows the stacks of a running job.",
    ),
)
DEBUGGER = (
    honoured("DebugHookConfig.LocalPath", "folder of saved tensors on hosts"),
    honoured("DebugHookConfig.S3OutputPath", "saved tensors are stored below it while the job runs"),
    honoured("DebugHookConfig.HookParameters", "parameters of the hook; unknown ones are refused"),
    honoured("DebugHookConfig.CollectionConfigurations[].CollectionName", "tensors that are saved together"),
    honoured("DebugHookConfig.CollectionConfigurations[].CollectionParameters", "when and what of them is saved"),
    *_rules_of("DebugRuleConfigurations", writes="", is_report=False),
    honoured("TensorBoardOutputConfig.LocalPath", "folder of TensorBoard's events on hosts"),
    honoured("TensorBoardOutputConfig.S3OutputPath", "they are stored below it while the job runs"),
)
