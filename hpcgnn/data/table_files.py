"""`csv:FILE,nodes=FILE` and `parquet:FILE,nodes=FILE`: a table of edges and a table of nodes, columns by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hpcgnn.data.columns import Cells
from hpcgnn.data.dataset import GraphDataset
from hpcgnn.data.given import finish_dataset
from hpcgnn.data.options import NOTHING, SourceOptions, reading, split_path
from hpcgnn.data.tables import AN_INDEX, Choices, Table, columns_of, graph_of_tables
from hpcgnn.data.text_stream import keys_of, name_of, parts_of
from hpcgnn.data.text_table import INTEGER, TEXT, TextTable, is_like_number, read_columns, whole_numbers_of
from hpcgnn.errors import DatasetError

UNNAMED = "column 0"
SETTINGS = ("nodes", "source", "target", "weight", "relation", "edge_features", "time", "id", "label", "split",
            "features", "ignore")


def load_tables(kind: str, rest: str, options: SourceOptions) -> GraphDataset:
    """Load "EDGES[,nodes=NODES][,source=COLUMN][,target=COLUMN][,weight=COLUMN][,relation=COLUMN]
    [,edge_features=COLUMN;COLUMN][,time=COLUMN][,id=COLUMN][,label=COLUMN][,split=COLUMN]
    [,features=COLUMN;COLUMN]"; the dataset is named after the file of edges.

    Columns with a usual name need not be named; weight=none, relation=none and split=none leave out such a column. All
    columns of the nodes that are not used otherwise are features; attributes of edges are only those that are named.
    """
    read = read_csv_table if kind == "csv" else read_parquet_table
    file, settings = split_path(rest, SETTINGS, f"a {kind}: source")
    path = Path(file)
    options.progress(f"reading {path.name}", None)
    edges, remarks, skipped = read(path, *_names(settings, ("source", "target", "weight", "relation", "time")))
    nodes = None
    if "nodes" in settings:
        options.progress(f"reading {Path(settings['nodes']).name}", None)
        nodes, *more = read(Path(settings["nodes"]), *_names(settings, ("id", "label", "split", "features")))
        remarks, skipped = remarks + more[0], skipped + more[1]
    placed = {choice: _column(settings[key], table) for choice, key, table in (
        ("labels", "label", nodes), ("edge_weight", "weight", edges), ("relation", "relation", edges),
        ("edge_time", "time", edges))
        if settings.get(key, NOTHING) != NOTHING}
    choices = Choices.of(settings, **placed, nodes=nodes, source=_column(settings.get("source"), edges),
                         target=_column(settings.get("target"), edges), node_ids=_column(settings.get("id"), nodes),
                         features=_features(settings.get("features"), options))
    if ";" in (label := settings.get("label", "")):
        choices = replace(choices, labels=label.split(";"))
    if nodes is not None and settings.get("split") in nodes:      # a column with a number as its name
        choices = replace(choices, splits=settings["split"])
    given = graph_of_tables(edges, choices, name_of(path))
    return finish_dataset(replace(given, remarks=remarks + given.remarks, origins=replace(
        given.origins, skipped=skipped + given.origins.skipped)), options)


def _names(settings: dict[str, str], keys: tuple[str, ...]) -> list[str]:
    return [name for key in keys for name in settings.get(key, "").split(";") if name not in ("", NOTHING)]


def read_csv_table(path: Path, *names: str) -> tuple[Table, tuple[str, ...], tuple[str, ...]]:
    """Read text files with a header line; also returns remarks, and what was skipped.

    A column is int64 if all its cells are whole numbers as Python writes them; others are Cells. A first line of words
    above other words is a header if it has one of `names`.
    """
    table = TextTable(path)
    if table.header is None and set(names) & set(table.first):
        table = TextTable(path, has_header=True)
    if table.header is None:
        what = "no header" if table.num_columns else "neither header nor rows"
        is_named = table.num_columns > 1 and not any(map(is_like_number, table.first))
        example = f", or, if its first line names them, say which is which, as by source={table.first[0]}" \
            if is_named else ""
        raise DatasetError(f"{path} has {what}, and csv: finds columns by name; put their names in the first line"
                           f"{example}, or use edges:FILE,labels=FILE")
    columns = read_columns(table, [INTEGER] * table.num_columns + [TEXT] * len(table.keys))
    skipped = table.skipped
    named = TextColumns((*table.header, *table.keys))
    for place, (name, column) in enumerate(zip((*table.header, *table.keys), columns, strict=True)):
        if place < table.num_unnamed and _counts(column):
            skipped += (f"column {place} of {path.name}, {AN_INDEX}",)
            named.index = column if place == 0 else named.index
            continue
        if not name and _is_empty(column):
            skipped += (f"column {place} of {path.name}, which has neither a name nor a value",)
            continue
        if name in named or not name:
            raise DatasetError(f"{path} names the column {name!r} twice; expected one name for each column" if name else
                               f"{path} has no name for column {place}; name it, as id if it holds ids, or write the "
                               "file without it, as by to_csv(index=False)")
        named[name] = column if isinstance(column, np.ndarray) else Cells(column)
    return named, table.remarks, skipped


class TextColumns(dict):
    """Columns of a text table by name.

    places : tuple of str     names of all columns of the file
    index : (num_rows,) int64, the first column, which was left out, or None
    """

    def __init__(self, places: tuple[str, ...]) -> None:
        super().__init__()
        self.places, self.index = places, None


def _counts(column: np.ndarray | pa.Array) -> bool:
    # Whether a column may be an index: 0, 1, 2 and so on, the same from 1, or rising like the index of selected rows.
    return isinstance(column, np.ndarray) and bool((np.diff(column) > 0).all()) and bool((column[:1] >= 0).all())


def _is_empty(column: np.ndarray | pa.Array) -> bool:
    return isinstance(column, pa.Array) and not pc.any(pc.not_equal(column, "")).as_py()


def read_parquet_table(path: Path, *names: str) -> tuple[Table, tuple[str, ...], tuple[str, ...]]:
    """Read a Parquet file, or several with the same columns; folders such as year=2020 are columns, too."""
    import pyarrow.parquet as parquet

    files = parts_of(path, "a Parquet file")
    tables = []
    for file in files:
        with reading(file, "a Parquet file", "can't be read as Parquet ({}); it is damaged or of another format; give "
                     "a text file as csv:FILE or edges:FILE"):
            table = parquet.ParquetFile(file).read()
            if len(files) > 1:      # parts may differ in which columns are dictionaries
                table = table.cast(pa.schema([field.with_type(field.type.value_type) if pa.types.is_dictionary(
                    field.type) else field for field in table.schema]))
        for key, value in keys_of(file, path).items():
            table = table.append_column(key, pa.repeat(pa.scalar(value, pa.large_string()), len(table)))
        if tables and table.column_names != tables[0].column_names:
            raise DatasetError(f"{file} has the columns {', '.join(table.column_names)}, and {files[0].name} before it "
                               f"{', '.join(tables[0].column_names)}; expected the same in all files of {path.name}")
        tables.append(table)
    try:
        table = pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]
    except pa.ArrowException as error:
        raise DatasetError(f"{path} has files with columns of several types ({str(error).splitlines()[0]}); expected "
                           "the same in all") from None
    remarks = ()
    if len(files) > 1:
        remarks = (f"{path.name} stands for {len(files)} files, {files[0].name} to {files[-1].name}",)
    for place, name in enumerate(keys_of(files[0], path), table.num_columns - len(keys_of(files[0], path))):
        if (numbers := whole_numbers_of(table.column(place).combine_chunks())) is not None:
            table = table.set_column(place, name, pa.array(numbers))
    # A pandas DataFrame's index, stored as a column.
    index = [name for name in table.column_names if name.startswith("__index_level_")]
    return columns_of(table.drop_columns(index), str(path)), remarks, ()


def _column(name: str | None, table: Table | None) -> str | int | None:
    if name is None or table is None or name in table:
        return name
    places = getattr(table, "places", tuple(table))
    if name in ("0", places[0]) and getattr(table, "index", None) is not None:
        table[UNNAMED] = table.index     # the omitted first column is requested
        return UNNAMED
    if not name.isdecimal():
        return name
    return places[int(name)] if int(name) < len(places) else int(name)


def _features(names: str | None, options: SourceOptions) -> list[str] | bool | None:
    if options.feature_kind == "structural" or names == NOTHING:
        return False
    return None if names is None else names.split(";")
