"""Names of the built-in models and their import paths, readable without torch. A new model needs a line and a file."""

MODEL_PATHS = {
    "gcn": "hpcgnn.nn.stack:GCN",
    "sage": "hpcgnn.nn.stack:SAGE",
    "sage-max": "hpcgnn.nn.stack:MaxPoolSAGE",
    "gat": "hpcgnn.nn.stack:GAT",
    "gin": "hpcgnn.nn.stack:GIN",
    "rgcn": "hpcgnn.nn.stack:RGCN",
    "gcnii": "hpcgnn.nn.deep:GCNII",
    "dagnn": "hpcgnn.nn.deep:DAGNN",
    "sgc": "hpcgnn.nn.deep:SGC",
    "jknet": "hpcgnn.nn.deep:JKNet",
    "appnp": "hpcgnn.nn.deep:APPNP",
}
RELATIONAL = ("rgcn",)      # models that need relations of edges
NEEDS_RELATIONS = ("model {} needs relations of edges, and this graph's edges are of one kind; preprocess a source "
                   "whose edges have relations, or take another model")
