"""Passes of integer models on a device, over a rank's rows of the whole graph or over packed batches."""
