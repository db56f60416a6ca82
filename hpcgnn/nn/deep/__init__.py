"""Deep models, a page each with its formula: GCNII, DAGNN, SGC, JKNet and APPNP."""
