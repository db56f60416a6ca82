"""Device side of the operations: the names and arguments of `hpcgnn.ops.host`, each launching CUDA kernels.

Sources are kernels/*.cu; cupy, which compiles and starts them, is imported by the first launch and nowhere before.
"""
