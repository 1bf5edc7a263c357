"""Which part of a model goes to which pipeline rank.

plan    the decision, a pure function of what every module costs
"""
