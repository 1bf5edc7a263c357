"""Places the parts of a model on pipeline ranks.

plan    the decision, a pure function of the modules' costs
"""
