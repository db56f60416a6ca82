"""The bit-widths that a message's row may have. Whoever adds one begins here: kernels of both places follow."""

BIT_WIDTHS = (1, 2, 4, 8, 16, 32)      # 16 is bfloat16, 32 float32
PACKED_WIDTHS = BIT_WIDTHS[:4]         # of rows that are codes with a zero point and a step
