"""Many optimizer steps an epoch on the whole graph: each step computes the rows of some clusters afresh and reads all
others as they last were.
"""
