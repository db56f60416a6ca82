"""The operations of the program, one file per operation, with its contract, its checks, and the host's function.

Files of the same name in ops/cuda have the device's function; `dispatch` chooses by the tensors' device. Every
operation raises KernelError for arrays of other types, shapes or devices than its docstring states.
"""
