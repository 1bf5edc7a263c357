"""Environment of the program on a host: the `/opt/ml` tree, variables, code, Python packages.

Where: the supervisor calls these modules after it has received the launch plan and before a launcher plans the
processes.

config_files       folders and JSON files below `/opt/ml`
train_library      the folder with `clary.train` and our versions of AWS's packages
variables          the service's variables and the toolkit's SM_* set
code               the user's code, from `sagemaker_submit_directory`
requirements       an environment with the user's requirements, kept between jobs
requirement_files  bounded reading of requirement files
installation       installation by uv in a host of the job
layer_merge        merge of the installed files into an environment
interpreter        packages of an environment, listed by its own interpreter
clone              a copy of an environment that shares its files
package_index      the package indexes that pip is configured for on this machine
compilation        variables of jobs that compile models, and the name of their compiled code
compiled_code      compiled code, kept between jobs
sdk_drivers        notes on things that the SDKs' drivers will miss on a host
stop_notice        the notice of a stop, for the program
"""
