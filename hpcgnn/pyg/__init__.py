"""Unmodified PyTorch Geometric models on several ranks.

Halo rows arrive before each convolution, and statistics over nodes are summed over ranks. PyTorch Geometric is looked
up where a model has imported it.
"""
