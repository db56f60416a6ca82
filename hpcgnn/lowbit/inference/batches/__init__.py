"""Inference in batches of METIS clusters: cut, dealt out to ranks, and answered by tiles or by gathering."""
