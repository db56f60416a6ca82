"""A device trains as the host does: the same losses and the same bytes, by every method and however messages travel."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from covering import long_but
from mpi4py import MPI
from stand_in_device import StandInDevice, WatchedComm, use_host_kernels
from training_setup import losses, train, without_seconds

from hpcgnn.exchange import device_transport
from hpcgnn.exchange.device_transport import CudaAwareTransport, StagedTransport
from hpcgnn.ops.streams import use_streams
from hpcgnn.training import session

TRANSPORTS = {"staged": StagedTransport, "cuda-aware": CudaAwareTransport}
CPU = torch.device("cpu")
SHORT = {"epochs": 2, "eval_every": 2, "checkpoint_every": 0}
ADAPTIVE = {"deterministic": True, "epochs": 3, "descent_window": 1, "most_motion": 9.0}
METHODS = [
    {"method": "uniform", "bits": 2}, {"method": "random"}, {"method": "sylvie", **ADAPTIVE},
    {"method": "adaqp", "deterministic": True, "period": 2}, {"method": "pipegcn", "smoothing": 0.5},
    {"method": "bns", "share": 0.4}, {"method": "sancus"}, {"method": "uniform", "bits": 2, "predict": "previous"},
    {"method": "uniform", "bits": 4, "rematerialize": True}, {"method": "uniform", "bits": 4, "exchange": "alltoallv"},
    {"method": "uniform", "bits": 8, "precision": "fp16"}, {"model": "gat", "method": "uniform", "bits": 4},
    {"method": "uniform", "bits": 1, "code": "rotated"},
    {"method": "uniform", "bits": 2, "predict": "previous", "code": "rotated", "precision": "bf16"},
    {"model": "sage-max"}, {"quantize": "degree-aware"},
    {"method": "uniform", "bits": 2, "predict": "previous", "send_share": 0.3},
    {"method": "sylvie", "predict": "previous", "send_share": 0.3, **ADAPTIVE},
]


@pytest.fixture(params=list(TRANSPORTS))
def stand_in(request, monkeypatch):
    """Sessions of cuda compute on a stand-in device, with this transport."""
    device = StandInDevice()
    monkeypatch.setattr(session, "choose_device", lambda comm, name: CPU)
    monkeypatch.setattr(device_transport, "choose_transport",
                        lambda comm, name, where: TRANSPORTS[request.param](where))
    device.name = request.param
    return device


@pytest.mark.covering(1)
@pytest.mark.parallel([1, 2, 3])
@pytest.mark.parametrize("settings", long_but((2, 3, 4, 5, 6, 8, 10, 11, 13, 14, 15, 17), METHODS),
                         ids=json.dumps)
def test_every_method_gives_the_hosts_losses_and_bytes(shared_path, shards, monkeypatch, stand_in, settings):
    comm = MPI.COMM_WORLD
    summary, expected, _ = train(comm, shards, shared_path / "host", **{**SHORT, **settings})
    assert (summary["device"], summary["transport"]) == ("cpu", "host")
    use_host_kernels(monkeypatch)
    with use_streams(stand_in):
        summary, found, _ = train(WatchedComm(comm, stand_in), shards, shared_path / "device", device="cuda",
                                  **{**SHORT, **settings})
    assert (summary["device"], summary["transport"]) == ("cuda", stand_in.name)
    assert without_seconds(found) == without_seconds(expected)
    assert comm.size == 1 or sum(record["sent_bytes_payload"] for record in found) > 0
    assert np.isfinite(losses(found)).all()
