"""Compiles models and turns on mixed precision in programs that do neither themselves.

wishes       requests of the job, which the agent passes in the environment; pure
policies     which models are compiled or run under autocast, with the reason; pure
facts        the facts of a model that the policies judge
compiled     one compiled model: its first call, its return to eager execution
precision    autocast around a call, with results converted to float32
report       lines for the log, and the folder of `debug_mode`
outermost    the hook: the outermost module of each call in training

Where: `compat.clary_autoload` calls `outermost.install` at the end of `import torch` if the job has such a request.
"""
