"""Inference in batches of METIS clusters: cut, dealt out to ranks, and summed by bit tiles or by gathering."""
