"""Treatment of each member of the requests that change, end, list and search jobs.

Where: the same uses as `create_table`. The answers to lists and searches have no place for a warning: each member of
these requests is honoured or refused.
Source: UpdateTrainingJob, StopTrainingJob, DeleteTrainingJob, ListTrainingJobs, Search (AWS API reference).
"""

from __future__ import annotations

from clary.control.jobs.members.debug_members import PROFILER, REMOTE_DEBUG
from clary.control.jobs.members.member import honoured

_JOB = honoured("TrainingJobName", "the job")
STOP_TRAINING_JOB = (_JOB,)
DELETE_TRAINING_JOB = (_JOB,)
UPDATE_TRAINING_JOB = (
    _JOB,
    *PROFILER,
    honoured("ResourceConfig.KeepAlivePeriodInSeconds", "how long hosts wait from now on; 0 ends the warm pool"),
    *REMOTE_DEBUG,
)
LIST_TRAINING_JOBS = (
    honoured("NextToken", "the next page"),
    honoured("MaxResults", "maximum number of jobs on a page; 10 by default"),
    honoured("CreationTimeAfter", "jobs created later"),
    honoured("CreationTimeBefore", "jobs created earlier"),
    honoured("LastModifiedTimeAfter", "jobs changed later"),
    honoured("LastModifiedTimeBefore", "jobs changed earlier"),
    honoured("NameContains", "jobs whose names contain it"),
    honoured("StatusEquals", "jobs in that status; no job is ever Deleting"),
    honoured("SortBy", "Name, CreationTime or Status"),
    honoured("SortOrder", "Ascending or Descending"),
    honoured("WarmPoolStatusEquals", "jobs whose warm pool is in that status"),
    honoured("TrainingPlanArnEquals", "nothing: no job has the capacity of a training plan"),
)
_FILTERS = (
    honoured(
        "SearchExpression.Filters[].Name",
        "a property of the resource, in upper or lower case; unknown properties are refused",
    ),
    honoured("SearchExpression.Filters[].Operator", "how it is compared; Equals by default"),
    honoured("SearchExpression.Filters[].Value", "with what"),
)
SEARCH = (
    honoured(
        "Resource",
        (
            "TrainingJob, HyperParameterTuningJob, Experiment, ExperimentTrial, "
            "ExperimentTrialComponent; a search for any other resource finds nothing"
        ),
    ),
    *_FILTERS,
    honoured("SearchExpression.NestedFilters[].NestedPropertyName", "a list whose members are looked at one by one"),
    honoured("SearchExpression.NestedFilters[].Filters", "filters that must all match the same member of the list"),
    honoured("SearchExpression.SubExpressions", "expressions inside of expressions"),
    honoured("SearchExpression.Operator", "And or Or"),
    honoured("SortBy", "a property of the resource; LastModifiedTime by default"),
    honoured("SortOrder", "Ascending or Descending"),
    honoured("NextToken", "the next page"),
    honoured("MaxResults", "maximum number of records on a page; 10 by default"),
    honoured("CrossAccountFilterOption", "CrossAccount: nothing, there is one account"),
    honoured("VisibilityConditions", "Tags.<key>: records with that tag and another value are left out"),
)
