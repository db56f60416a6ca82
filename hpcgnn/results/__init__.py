"""Results of a trained run: answers for all nodes, and weights for other tools."""
