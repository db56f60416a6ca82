"""What a trained run gives: answers of all nodes, and weights for other tools."""
