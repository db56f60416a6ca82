"""The columns of a table of answers, by name, as CSV and Parquet have them. No file is known here."""

from __future__ import annotations

import numpy as np

from hpcgnn.results.answers import Answers
from hpcgnn.training.scores import CLASSES, MULTI_LABEL


def columns_of(answers: Answers) -> dict[str, np.ndarray]:
    """Return one array of (n,) a column, without the embeddings.

    `node` is the id in the source. One class a node: `class`, `class_name` where classes have names, and `probability`.
    Several labels: for each label K `label_K` (0 or 1) and `probability_K`. Regression: `value`, or `value_K` for each
    of several targets. K is the name of a label or target where it has one, else its number.
    """
    columns = {"node": answers.name}
    if answers.task == CLASSES:
        names = answers.class_name
        return {**columns, "class": answers.prediction, **({} if names is None else {"class_name": names}),
                "probability": answers.probability}
    if answers.task == MULTI_LABEL:
        return {**columns, **_split("label", answers.prediction, answers.class_names),
                **_split("probability", answers.probability, answers.class_names)}
    if answers.prediction.shape[1] == 1:
        return {**columns, "value": answers.prediction[:, 0]}
    return {**columns, **_split("value", answers.prediction, answers.class_names)}


def embedding_columns(answers: Answers) -> dict[str, np.ndarray]:
    """Return one array of (n,) float32 a column of the embeddings: `embedding_0`, `embedding_1`, and so on."""
    return _split("embedding", answers.embeddings, ())


def _split(name: str, table: np.ndarray, names: tuple[str, ...]) -> dict[str, np.ndarray]:
    keys = names if len(names) == table.shape[1] else range(table.shape[1])
    return {f"{name}_{key}": table[:, number] for number, key in enumerate(keys)}
