"""Placement of a model's parts on pipeline ranks.

plan    the decision, a pure function of the modules' costs
"""
