"""Every kind of file that hpcgnn writes, made once for a campaign from a tiny graph by the commands themselves."""

from __future__ import annotations

from pathlib import Path

from campaigns.calls import must_run

GRAPH = "synthetic:nodes=48,mean_degree=4,classes=3,features=5,signal=2"
TRAIN = ("--model", "gcn", "--layers", 2, "--hidden", 6, "--epochs", 4, "--eval-every", 2, "--checkpoint-every", 2,
         "--dropout", 0.2, "--lr", 0.01)


def make_shards(folder: Path, parts: int, *flags) -> Path:
    """Shards of the tiny graph."""
    must_run("preprocess", GRAPH, "--out", folder, "--parts", parts, "--seed", 1, *flags)
    return folder


def make_all(folder: Path) -> dict[str, Path]:
    """Shards for one rank in each feature format, and a run, a model, predictions and packages on them.

    Returns
    -------
    folders : by name: shards (2 parts), shards-float16 and shards-package (with clusters), alone (1 part), run, made
        (model.h5, predictions.h5), packages, adaqp (a run with a rank's file)
    """
    folders = {"shards": make_shards(folder / "shards", 2), "alone": make_shards(folder / "alone", 1)}
    for form in ("float16", "package"):
        folders[f"shards-{form}"] = make_shards(folder / f"shards-{form}", 2, "--feature-format", form,
                                                "--cluster-rows", 8)
    folders.update(run=folder / "run", made=folder / "made", packages=folder / "packages",
                   adaqp=folder / "adaqp")
    folders["made"].mkdir()
    must_run("train", folders["alone"], *TRAIN, "--out", folders["run"])
    must_run("train", folders["alone"], *TRAIN, "--method", "adaqp", "--set", "deterministic=true",
             "--out", folders["adaqp"])
    must_run("quantize", folders["run"], folders["alone"], "--bits", 4, "--out", folders["made"] / "model.h5")
    must_run("infer", folders["made"] / "model.h5", folders["alone"], "--repeat", 1, "--out",
             folders["made"] / "predictions.h5", "--packages", folders["packages"])
    return folders
