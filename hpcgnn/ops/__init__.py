"""The operations of the program. X.py states the contract of its operations and checks it once, then calls a backend.

Operations on torch tensors ask `dispatch.backend_of` for host/X.py or cuda/X.py, by the device that the tensors live
on.
Operations on NumPy arrays are the host's alone, and import host/X.py as `host`.
"""
