"""Answers of integer models: their files, rows as codes, and passes over a rank's rows or over batches.

All passes compute the same bits:

    forward           host, layer by layer; any model, any neighborhood
    graph_pass        host, blocks of one rank's rows through all that lies between two exchanges; models that sum
    batches/run       host, packed batches, each through all layers at once; `forward` for attention or few batches
    device/graph      device, one rank's rows
    device/batches    device, packed batches, copied group by group
"""
