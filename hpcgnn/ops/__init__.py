"""The operations of the program, one file per operation: what it computes, its checks, and the host's function.

Files of the same name in ops/cuda have a device's function; `dispatch` chooses by the tensors' device. Every operation
raises KernelError for arrays of other types, shapes or devices than its docstring states.
"""
