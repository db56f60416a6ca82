"""Accelerators of GNNs as models: cycles, bytes of DRAM and joules of an inference on MEGA and on its peers."""
