"""Make a graph of the packages that this Debian or Ubuntu machine knows: python examples/debian_packages.py [LIST ...]

Writes packages.parquet (name, section, text) and dependencies.parquet (source, target, kind) into the current folder.
Without LIST, it reads the package lists that apt-get update leaves. docs/real-graph.md trains on the two tables.

This record of a list

    Package: hello-web
    Section: contrib/web
    Depends: libc6:any (>= 2.36), apache2 | httpd
    Description: greets you from a server

becomes the node hello-web with the label web, a vector of its description's words, and edges of kind Depends to libc6,
to apache2, and to each package with "Provides: httpd". Features use neither the name nor the fields Section and Tag.
"""

import math
import re
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.sparse
import scipy.sparse.linalg

COMPRESSED = (".lz4", ".gz", ".xz", ".bz2", ".zst")
KINDS = ("Pre-Depends", "Depends", "Recommends", "Suggests", "Enhances", "Breaks", "Conflicts", "Replaces", "Provides")


def text_of(path):
    """The text of a list. apt-helper decompresses; it is on every Debian and Ubuntu."""
    try:
        return path.read_text() if path.suffix not in COMPRESSED else subprocess.run(
            ["/usr/lib/apt/apt-helper", "cat-file", path], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as reason:
        sys.exit(f"{path} can't be read: {getattr(reason, 'stderr', reason)}")


def version_order(version):
    """Sort key of epoch:upstream-revision as dpkg compares: "~" is before the end, letters are before other signs."""
    epoch, _, rest = version.rpartition(":")
    upstream, _, revision = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return int(epoch or 0), *([([-1 if sign == "~" else ord(sign) + 256 * (not sign.isalpha()) for sign in signs] + [0],
                                int(number or 0)) for signs, number in re.findall(r"(\D*)(\d*)", part or "0")]
                              for part in (upstream, revision))


def records_of(lists):
    """Fields of each package, by name. Of several versions, in one list or in several, only the newest counts."""
    found = {}
    for path in lists:
        for record in text_of(path).split("\n\n"):
            fields = dict(re.findall(r"^([^\s:]+):[ \t]*(.*(?:\n[ \t].*)*)", record, re.MULTILINE))
            known = found.get(name := fields.get("Package"), {"Version": "~"})
            if name and version_order(fields["Version"]) > version_order(known["Version"]):
                found[name] = fields
    return found


def names_in(field):
    """The names a, b and c of "a:any (>= 2), b | c": all alternatives, no architectures, no bounds of versions."""
    return [re.split(r"[\s:(\[<]", part.strip(), maxsplit=1)[0] for part in re.split("[,|]", field) if part.strip()]


def dependencies_of(records):
    """Distinct rows (source, target, kind), and how many names lead to no package.

    A virtual package, provided but in no list, stands for all its providers. Provides is an edge only to real packages.
    """
    providers = defaultdict(list)
    for name, fields in records.items():
        for provided in names_in(fields.get("Provides", "")):
            providers[provided].append(name)
    rows, lost = {}, 0
    for source, fields in records.items():
        for kind in KINDS:
            for name in names_in(fields.get(kind, "")):
                targets = [name] if name in records else [] if kind == "Provides" else providers[name]
                lost += not targets and kind != "Provides"
                rows.update(((source, target, kind), None) for target in targets if target != source)
    return list(rows), lost


def text_vectors(texts):
    """TF-IDF of the words that occur in two texts or more, as rows of length 1, reduced by a truncated SVD."""
    words = [sorted(set(re.findall(r"[a-z][a-z0-9+#]+", text.lower()))) for text in texts]
    occurrences = Counter(word for row in words for word in row)
    place = {word: number for number, word in enumerate(word for word, times in occurrences.items() if times > 1)}
    rows = [[place[word] for word in row if word in place] for row in words]
    columns = np.concatenate(rows).astype(int)
    weights = np.array([math.log(len(texts) / occurrences[word]) for word in place])[columns]
    matrix = scipy.sparse.csr_matrix((weights, columns, np.cumsum([0, *map(len, rows)])), (len(texts), len(place)))
    matrix = scipy.sparse.diags(1 / np.maximum(scipy.sparse.linalg.norm(matrix, axis=1), 1e-9)) @ matrix
    left, values, _ = scipy.sparse.linalg.svds(matrix, min(129, *matrix.shape) - 1, random_state=0)
    return (left * values)[:, ::-1].astype(np.float32)


def main():
    found = sorted(path for end in ("", *COMPRESSED) for path in Path("/var/lib/apt/lists").glob(f"*_Packages{end}"))
    records = records_of(map(Path, sys.argv[1:]) if sys.argv[1:] else found)
    if not records:
        sys.exit("there are no lists of packages; run apt-get update as root, or name a Packages file of an archive")
    rows, lost = dependencies_of(records)
    sections = [fields.get("Section", "").rpartition("/")[2] or None for fields in records.values()]
    vectors = text_vectors([fields.get("Description", "") for fields in records.values()])
    vectors = pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), vectors.shape[1])
    pq.write_table(pa.table([list(records), sections, vectors], ["name", "section", "text"]), "packages.parquet")
    columns = {name: [row[place] for row in rows] for place, name in enumerate(("source", "target", "kind"))}
    pq.write_table(pa.table(columns), "dependencies.parquet")
    print(f"{len(records)} packages of {len(set(sections) - {None})} sections, {len(rows)} dependencies:",
          ", ".join(f"{times} {kind}" for kind, times in Counter(columns["kind"]).most_common()))
    print(f"{lost} names in these fields are of no package in the lists and provided by none")


if __name__ == "__main__":
    main()
