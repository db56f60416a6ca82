"""Models of PyTorch Geometric as they are: halo rows come before their convolutions, and sums over nodes are of all
ranks. PyTorch Geometric is never imported here, only looked up where a model has brought it.
"""
