"""Places the parts of a model on pipeline ranks.

plan    the decision, a pure function of what every module costs
"""
