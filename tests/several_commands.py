"""`python several_commands.py '[["train", "SHARDS"], ["infer", "MODEL"]]'` runs commands of hpcgnn one after another.

For tests to which it is all the same who runs them: a process takes longer to start than they do. A zero byte ends what
each prints, on both outputs.
"""

from __future__ import annotations

import json
import sys

from hpcgnn.__main__ import main

if __name__ == "__main__":
    for words in json.loads(sys.argv[1]):
        try:
            main(words)
        except SystemExit as ended:
            if ended.code:
                raise
        for output in (sys.stdout, sys.stderr):
            print(end="\0", file=output, flush=True)
