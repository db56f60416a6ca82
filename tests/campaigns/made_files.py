"""Every kind of file that hpcgnn writes, made once for a campaign from a tiny graph by the commands themselves."""

from __future__ import annotations

from pathlib import Path

from campaigns.calls import must_run_all

GRAPH = "synthetic:nodes=48,mean_degree=4,classes=3,features=5,signal=2"
TRAIN = ("--model", "gcn", "--layers", 2, "--hidden", 6, "--epochs", 4, "--eval-every", 2, "--checkpoint-every", 2,
         "--dropout", 0.2, "--lr", 0.01)


def preprocessing(folder: Path, parts: int, *flags) -> list:
    """The command that makes shards of the tiny graph."""
    return ["preprocess", GRAPH, "--out", folder, "--parts", parts, "--seed", 1, *flags]


def commands_of(folder: Path, made: Path) -> list[list]:
    """Commands that make shards for two ranks in each feature format and for one, a run, and what follows from it."""
    alone, run, model = folder / "alone", folder / "run", made / "model.h5"
    return [preprocessing(folder / "shards", 2), preprocessing(alone, 1),
            *(preprocessing(folder / f"shards-{form}", 2, "--feature-format", form, "--cluster-rows", 8)
              for form in ("float16", "package")),
            ["train", alone, *TRAIN, "--out", run], ["quantize", run, alone, "--bits", 4, "--out", model],
            ["infer", model, alone, "--repeat", 1, "--out", made / "predictions.h5", "--packages",
             folder / "packages"]]


def make_all(folder: Path) -> dict[str, Path]:
    """Shards for one rank and for two in each feature format, and a run, a model, predictions and packages on them.

    Returns
    -------
    folders : by name: shards (2 parts), shards-float16 and shards-package (with clusters), alone (1 part), run, made
        (model.h5, predictions.h5), packages, adaqp (a run with a rank's file)
    """
    names = ("shards", "alone", "shards-float16", "shards-package", "run", "made", "packages", "adaqp")
    folders = {name: folder / name for name in names}
    folders["made"].mkdir(parents=True)
    must_run_all([*commands_of(folder, folders["made"]),
                  ["train", folders["alone"], *TRAIN, "--method", "adaqp", "--set", "deterministic=true", "--out",
                   folders["adaqp"]]])
    return folders
