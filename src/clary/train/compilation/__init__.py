"""Compiles models and turns mixed precision on in programs that do neither themselves.

wishes       settings of the agent, read from the environment; pure
policies     which models are compiled or run under autocast, with the reason; pure
facts        the facts of a model that the policies judge
compiled     one compiled model: its first call, its return to eager execution
precision    autocast around a call, results turned to float32
report       lines for the log, and the folder of `debug_mode`
outermost    the hook: the outermost module of each call in training

Where: `compat.clary_autoload` calls `outermost.install` at the end of `import torch` if the job has one of the wishes.
"""
