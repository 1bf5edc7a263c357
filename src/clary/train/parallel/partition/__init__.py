"""Placement of a model's parts on pipeline ranks.

trace       costs of modules, measured in one forward pass
plan        parts of the modules with costs, a pure function of the costs
decision    a plan or the script's own placement, equal on all ranks
placement   ranks of all modules, and redirection of their calls
"""
