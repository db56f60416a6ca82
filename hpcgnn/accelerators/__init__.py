"""Models of accelerators for GNNs: cycles, DRAM bytes and joules of an inference on MEGA and on its peers."""
