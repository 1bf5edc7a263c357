"""Environment of the program on a host: the `/opt/ml` tree, variables, code, Python packages.

Where: the supervisor calls these modules after it has received the launch plan and before a launcher plans the
processes.

config_files   folders and JSON files below `/opt/ml`
variables      the service's variables and the toolkit's SM_* set
code           the user's code, from `sagemaker_submit_directory`
requirements   an environment with the user's requirements, kept between jobs
interpreter    packages of an environment, listed by its own interpreter
clone          a copy of an environment that shares its files
package_index  the package indexes that pip is configured for on this machine
"""
