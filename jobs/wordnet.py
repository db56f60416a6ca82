"""Writes WordNet as a graph: synsets, and its 26 kinds of pointers as relations.

    apt-get download wordnet-base && dpkg -x wordnet-base*.deb wordnet
    python jobs/wordnet.py wordnet/usr/share/wordnet graph
    hpcgnn preprocess csv:graph/edges.csv,relation=relation,nodes=graph/nodes.csv,label=topic --hold-out 0.05 0.05 \
        --parts 2 --out shards/wordnet-p2

nodes.csv has a synset per line: its id, such as dog.n.02084071, and its lexicographer file, a topic of 45 (5 is
noun.animal). edges.csv has source, relation and target. Pointers between words become edges between their synsets.
Most relations have a reverse, such as hyponym of hypernym; if all edges of a relation have one, held-out links leave
with it. The format is wndb(5) of WordNet 3.0.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

FILES = {"n": "data.noun", "v": "data.verb", "a": "data.adj", "r": "data.adv"}
# What a pointer's target is to its source.
RELATIONS = {
    "!": "antonym", "@": "hypernym", "@i": "instance hypernym", "~": "hyponym", "~i": "instance hyponym",
    "#m": "member holonym", "#s": "substance holonym", "#p": "part holonym", "%m": "member meronym",
    "%s": "substance meronym", "%p": "part meronym", "=": "attribute", "+": "derivation", ";c": "topic",
    "-c": "member of topic", ";r": "region", "-r": "member of region", ";u": "usage", "-u": "member of usage",
    "*": "entailment", ">": "cause", "^": "also see", "$": "verb group", "&": "similar", "<": "participle of",
    "\\": "pertains to"}
Synset = tuple[str, str]      # part of speech and offset in its file, which pointers name


def read(folder: Path) -> tuple[dict[Synset, tuple[str, int]], list[tuple[Synset, str, Synset]]]:
    """The id and topic of each synset, and all pointers as source, relation and target."""
    synsets, pointers = {}, []
    for part, name in FILES.items():
        for line in (folder / name).read_text("utf-8").splitlines():
            if line.startswith("  "):      # the license
                continue
            offset, topic, _, num_words, *fields = line.partition(" | ")[0].split()
            source, rest = (part, offset), fields[2 * int(num_words, 16):]
            synsets[source] = f"{fields[0].partition('(')[0]}.{part}.{offset}", int(topic)
            for place in range(1, 1 + 4 * int(rest[0]), 4):
                symbol, target, of_target, _ = rest[place:place + 4]
                pointers.append((source, RELATIONS[symbol], (of_target.replace("s", "a"), target)))
    return synsets, pointers


def main(folder: Path, out: Path) -> None:
    """Write the two tables."""
    synsets, pointers = read(folder)
    out.mkdir(parents=True, exist_ok=True)
    for name, head, rows in (("nodes.csv", ("id", "topic"), list(synsets.values())),
                             ("edges.csv", ("source", "relation", "target"), [
                                 (synsets[source][0], relation, synsets[target][0])
                                 for source, relation, target in dict.fromkeys(pointers)])):
        with (out / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([head, *rows])
        print(f"{out / name}: {len(rows):,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
