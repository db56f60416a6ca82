"""Sums neighbors' 4-bit codes over an adjacency of bits, without its tiles of zeros: python examples/bit_tiles.py"""

import torch

from hpcgnn.lowbit import BitTiles, aggregate_bits, to_bit

adjacency = torch.block_diag(*(torch.rand(150, 150) < 0.1 for _ in range(8)))   # clusters, as a batch has them
features = to_bit(torch.rand(1200, 32), 4, packing="row")
tiles = BitTiles.from_matrix(adjacency)
product = aggregate_bits(tiles, features)
assert torch.equal(product.result, adjacency.int() @ features.to_codes().int())
print(f"{product.num_jumped} of {tiles.tiles.num_places} tiles were zero and jumped")
