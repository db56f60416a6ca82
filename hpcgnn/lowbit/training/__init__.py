"""Quantization-aware training: the same convolutions with rounding in every pass, and their export as integers."""
