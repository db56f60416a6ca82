"""What a terminal shows of a run comes from the lines of its metrics, read as they are finished."""

from __future__ import annotations

import json

import pytest

from hpcgnn.errors import ConfigError
from hpcgnn.registry import seal_json
from hpcgnn.report.live import MetricsTail, Standing, age_of, bar, line_of, lines_of, sparkline


def record(epoch, seed=0, **more):
    return {"seed": seed, "epoch": epoch, "loss": 2 / epoch, "epoch_seconds": 0.5, "sent_bytes_payload": 1500,
            "sent_bytes_parameters": 500, "mode": "sync", "mean_bits": 4.0, "width_histogram": {"8": 1, "2": 3}, **more}


def line(epoch, **more):
    return seal_json(json.dumps(record(epoch, **more))) + "\n"


def test_lines_are_read_when_they_are_finished(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    tail.read_on()
    assert tail.records == []
    second = line(2)
    path.write_text(line(1) + second[:20])
    tail.read_on()
    assert [one["epoch"] for one in tail.records] == [1]
    with open(path, "a") as file:
        file.write(second[20:])
    tail.read_on()
    tail.read_on()
    assert [one["epoch"] for one in tail.records] == [1, 2]
    path.write_text(line(1))      # a resumed run is cut back to its checkpoint
    tail.read_on()
    assert [one["epoch"] for one in tail.records] == [1]


def test_a_damaged_line_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1) + line(2).replace("0.5", "0.6"))
    with pytest.raises(ConfigError, match=r"metrics\.jsonl, line 2 is damaged: its checksum"):
        MetricsTail(path).read_on()


def test_rate_and_remaining_time_and_scores_are_of_the_records():
    records = [record(1, val_score=0.5), record(2, epoch_seconds=1.5), record(3, val_score=0.7),
               record(1, 1, val_score=0.2), record(2, 1, val_score=0.6), record(3, 1, val_score=0.4)]
    standing = Standing({"epochs": 10, "repeat": 2, "seed": 0}, records)
    assert standing.place == "seed 2 of 2, epoch 3 of 10"
    assert (standing.share, standing.epoch_seconds, standing.seconds_left) == (0.65, 0.5, 3.5)
    assert (standing.best_score, standing.sent_bytes) == (0.6, (2000, 12000))
    assert Standing({"score": "mae"}, records).best_score == 0.2
    assert standing.widths == "synchronous; 4.00 bits per value; 75 % of rows at 2, 25 % of rows at 8"
    assert line_of(standing) == "seed 2 of 2, epoch 3 of 10  loss 0.6667  val 0.4000  sent 2.00 kB in 500 ms"


def test_a_terminal_shows_a_line_of_each(tmp_path):
    standing = Standing({"epochs": 4}, [record(1), record(2, val_score=0.5)])
    checkpoint = tmp_path / "checkpoint.h5"
    lines = lines_of(standing, checkpoint)
    assert [one.split()[0] for one in lines] == ["epoch", "loss", "val", "sent", "saved"]
    assert lines[0] == f"epoch 2 of 4  {'█' * 12}{'░' * 12}  500 ms per epoch, 1.00 s left"
    assert lines[-1] == "saved  no checkpoint yet"
    checkpoint.touch()
    assert age_of(checkpoint, checkpoint.stat().st_mtime + 90) == "checkpoint 90.0 s ago"
    assert lines_of(Standing({}, [{"seed": 0, "epoch": 1, "loss": None}]), checkpoint)[1] == "loss   ?  "


def test_sparklines_go_from_the_least_to_the_largest():
    assert sparkline([]) == "" and sparkline([3.0]) == "▁" and sparkline([0, 7, 3]) == "▁█▄"
    assert sparkline(list(range(64))) == sparkline(list(range(32))) and bar(0.5, 4) == "██░░"
