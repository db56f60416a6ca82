"""The names of the built-in models, and where their classes are. A model of the project needs a line here and a file.

Nothing is imported here, so that settings and help know the names without torch.
"""

MODEL_PATHS = {
    "gcn": "hpcgnn.nn.stack:GCN",
    "sage": "hpcgnn.nn.stack:SAGE",
    "sage-max": "hpcgnn.nn.stack:MaxPoolSAGE",
    "gat": "hpcgnn.nn.stack:GAT",
    "gin": "hpcgnn.nn.stack:GIN",
    "gcnii": "hpcgnn.nn.deep.gcnii:GCNII",
    "dagnn": "hpcgnn.nn.deep.dagnn:DAGNN",
    "sgc": "hpcgnn.nn.deep.sgc:SGC",
    "jknet": "hpcgnn.nn.deep.jknet:JKNet",
    "appnp": "hpcgnn.nn.deep.appnp:APPNP",
}
