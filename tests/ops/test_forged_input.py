"""Decoders refuse forged input or read it; `jobs/campaign.sh sanitize` tries much more of it, under sanitizers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from campaigns import sanitize_worker as forging

from hpcgnn.errors import KernelError


@pytest.mark.parametrize("kind", sorted(set(forging.KINDS), key=lambda kind: kind.__name__))
def test_forged_input_is_refused_or_read(simd, kind):
    assert kind(np.random.default_rng(7)) >= 200


def test_every_way_of_reading_finds_faults_in_the_corpus(simd):
    faults = []
    for one in json.loads(forging.CORPUS.read_text()):
        packed = forging.from_text(one)
        faults.append(forging.decode_all_ways(packed, forging.room_for(packed.num_rows, packed.dim)))
        if not any(faults[-1]):
            continue
        with pytest.raises(KernelError, match="packages can't be read"):
            packed.check()
    assert (np.count_nonzero(faults, axis=0) > 10).all()
