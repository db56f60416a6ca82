"""The operations of the program, one file an operation: what it computes, its checks, and the host's function.

A function that a device computes by kernels of its own lies in ops/cuda; `dispatch` chooses by the tensors' device.
Every operation raises KernelError for arrays of other types, shapes or devices than its docstring states.
"""
