"""Unmodified PyTorch Geometric models on several ranks.

Halo rows arrive before each convolution, and statistics over nodes are summed over ranks. PyTorch Geometric is used
only if a model has imported it.
"""
