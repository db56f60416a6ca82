"""Many optimizer steps per epoch on the whole graph.

Each step computes the rows of some clusters (or single rows) afresh and reads all others as they last were.
"""
