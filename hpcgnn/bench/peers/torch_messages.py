"""`TorchMessage` holds stochastic codes packed with torch's operations, as one does without own kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class TorchMessage:
    """Rows (n, dim) float32 as codes of 1, 2, 4 or 8 bits, packed by shifts, with each row's minimum and step."""

    def __init__(self, rows: torch.Tensor, bits: int):
        self.bits, self.dim = bits, rows.shape[1]
        self.low = rows.amin(1, keepdim=True)
        self.step = (rows.amax(1, keepdim=True) - self.low) / (2**bits - 1)
        scaled = (rows - self.low) / self.step
        codes = torch.floor(scaled + torch.rand_like(scaled)).clamp_(0, 2**bits - 1).to(torch.uint8)
        self.payload = self._pack(codes)

    def _pack(self, codes: torch.Tensor) -> torch.Tensor:
        if self.bits == 8:
            return codes
        per_byte = 8 // self.bits
        groups = F.pad(codes, (0, -self.dim % per_byte)).view(len(codes), -1, per_byte)
        packed = groups[..., 0].clone()
        for position in range(1, per_byte):
            packed |= groups[..., position] << position * self.bits
        return packed

    def unpack(self) -> torch.Tensor:
        """The dequantized rows, (n, dim) float32."""
        codes = self.payload
        if self.bits < 8:
            shifts = torch.arange(0, 8, self.bits, dtype=torch.uint8, device=codes.device)
            codes = codes.unsqueeze(-1) >> shifts & 2**self.bits - 1
            codes = codes.view(len(codes), -1)[:, :self.dim]
        return self.low + self.step * codes.float()
