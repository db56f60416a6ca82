"""Quantization-aware training: convolutions that round in every pass, and their export as integers."""
