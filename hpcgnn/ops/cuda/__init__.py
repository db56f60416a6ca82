"""The device's functions of `hpcgnn.ops`, with the names and arguments of the host's; each launches CUDA kernels.

Kernels are in kernels/*.cu; the first launch imports cupy, which compiles and starts them.
"""
