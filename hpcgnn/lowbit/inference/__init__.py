"""Answers of integer models: their files, rows as codes, and passes over a rank's rows or over batches.

`host_pass` and `device_pass` compute the same bits, for both.
"""
