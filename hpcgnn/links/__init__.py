"""Link prediction: a model's outputs are rows of nodes, and the product of two rows is the score of a link."""
