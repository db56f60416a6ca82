"""The device's functions of `hpcgnn.ops`, with the host's names and arguments; each launches CUDA kernels.

Kernels are in kernels/*.cu; the first launch imports cupy, which compiles and starts them.
"""
