"""Results of a trained run: predictions for all nodes, and weights for other tools."""
