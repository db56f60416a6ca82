"""`csv:FILE,nodes=FILE` and `parquet:FILE,nodes=FILE`: a table of edges and a table of nodes, columns by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hpcgnn.datasets.dataset import GraphDataset
from hpcgnn.datasets.given import finish_dataset
from hpcgnn.datasets.limits import check_file
from hpcgnn.datasets.objects.choices import Choices
from hpcgnn.datasets.objects.tables import Table, columns_of, graph_of_tables
from hpcgnn.datasets.options import SourceOptions
from hpcgnn.datasets.spec import NOTHING, choice_of, ignored_of, split_of, split_settings
from hpcgnn.datasets.text_columns import column_ids, column_values, read_text_columns
from hpcgnn.errors import DatasetError

SETTINGS = ("nodes", "source", "target", "weight", "id", "label", "split", "features", "ignore")


def load_csv(rest: str, options: SourceOptions) -> GraphDataset:
    """Load tables from text files with a header; see load_tables."""
    return load_tables(rest, options, "csv", read_csv_table)


def load_parquet(rest: str, options: SourceOptions) -> GraphDataset:
    """Load tables from Parquet files; see load_tables."""
    return load_tables(rest, options, "parquet", read_parquet_table)


def load_tables(rest: str, options: SourceOptions, kind: str,
                read: Callable[[Path], tuple[Table, tuple[str, ...]]]) -> GraphDataset:
    """Load "EDGES[,nodes=NODES][,source=COLUMN][,target=COLUMN][,weight=COLUMN][,id=COLUMN][,label=COLUMN]
    [,split=COLUMN][,features=COLUMN;COLUMN]"; the dataset is named after the file of edges.

    Columns that go by a usual name need not be named; weight=none and split=none leave out one that does. All columns
    of the nodes that are not used otherwise are features.

    Raises
    ------
    DatasetError      a file that is missing or malformed, a column that is not there or has to be named
    """
    file, _, settings_text = rest.partition(",")
    settings = split_settings(settings_text, SETTINGS, f"a {kind}: source")
    path = Path(file)
    options.progress(f"reading {path.name}", None)
    edges, remarks = read(path)
    nodes = None
    if "nodes" in settings:
        options.progress(f"reading {Path(settings['nodes']).name}", None)
        nodes, more = read(Path(settings["nodes"]))
        remarks += more
    choices = Choices(nodes=nodes, source=_column(settings.get("source"), edges),
                      target=_column(settings.get("target"), edges), edge_weight=choice_of(settings.get("weight")),
                      ignore=ignored_of(settings.get("ignore")), node_ids=_column(settings.get("id"), nodes),
                      labels=_several(settings.get("label")),
                      splits=_split(settings.get("split"), nodes),
                      features=_features(settings.get("features"), options))
    given = graph_of_tables(edges, choices, path.name.split(".")[0])
    return finish_dataset(replace(given, remarks=remarks + given.remarks), options)


def read_csv_table(path: Path) -> tuple[Table, tuple[str, ...]]:
    """Read a text file whose first line names its columns, and say so.

    Raises
    ------
    DatasetError      a first line of numbers, or what read_text_columns refuses
    """
    columns = read_text_columns(path)
    if columns.header is None:
        raise DatasetError(f"{path} has no header, and csv: finds columns by name; put their names in the first line, "
                           "or use edges:FILE,labels=FILE")
    values = [column_values(cells) for cells in columns.columns]
    # A whole number with a leading zero is an id, such as a postal code, and stays a text.
    return {name: column_ids(cells) if array.dtype.kind == "i" else array
            for name, cells, array in zip(columns.header, columns.columns, values, strict=True)}, (columns.remark,)


def read_parquet_table(path: Path) -> tuple[Table, tuple[str, ...]]:
    """Read a Parquet file by pyarrow.

    Raises
    ------
    DatasetError      pyarrow is not installed, or can't read the file
    """
    check_file(path)
    try:
        import pyarrow.parquet
    except ImportError:
        raise DatasetError("parquet: needs pyarrow, which is not installed; run pip install 'hpcgnn[tables]'") from None
    try:
        return columns_of(pyarrow.parquet.read_table(path), str(path)), ()
    except FileNotFoundError:
        raise DatasetError(f"{path} does not exist; expected a Parquet file") from None
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise DatasetError(f"{path} can't be read as Parquet ({str(error).splitlines()[0]}); it is damaged or of "
                           "another format") from None


def _column(name: str | None, table: Table | None) -> str | int | None:
    """Return a column's name, or its place where no column is called by that number."""
    is_place = name is not None and name.isdecimal() and table is not None and name not in table
    return int(name) if is_place else name


def _split(name: str | None, nodes: Table | None) -> str | int | bool | None:
    return name if nodes is not None and name in nodes else split_of(name)


def _several(names: str | None) -> str | bool | list[str] | None:
    return names.split(";") if names is not None and ";" in names else choice_of(names)


def _features(names: str | None, options: SourceOptions) -> list[str] | bool | None:
    if options.features == "structural" or names == NOTHING:
        return False
    return None if names is None else names.split(";")
