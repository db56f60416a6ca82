"""Where, when and with what a run was made, as text; facts that the folder does not have are left out."""

from __future__ import annotations

from datetime import datetime

from hpcgnn.report.formats import format_bytes, format_histogram, format_number, format_seconds
from hpcgnn.report.run_folder import Run

# Keys of [provenance] and of the summary's versions, in this order, with the words of the page.
PROVENANCE = {"commit": "commit", "launcher": "launcher", "processor": "processor", "cores": "cores of rank 0",
              "simd": "instruction set", "platform": "platform", "hpcgnn": "hpcgnn", "python": "python",
              "torch": "torch", "numpy": "numpy", "mpi4py": "mpi4py", "mpi": "MPI", "shards": "shards"}


def facts_of(run: Run) -> dict[str, str]:
    known = {**(run.summary.get("versions") or {}), **run.provenance}
    facts = {"state": state_of(run), "started": _date(known.get("started")),
             "ended": _date(run.summary.get("ended")), "wall time": wall_time(run), "host": hosts_of(run),
             **{name: str(known[key]) for key, name in PROVENANCE.items() if known.get(key) not in (None, "")},
             **{key: str(run.summary[key]) for key in ("device", "transport") if run.summary.get(key)},
             **_sizes(run),
             "variables": ", ".join(map(str, known.get("variables") or [])), "command": known.get("command")}
    return {name: str(value) for name, value in facts.items() if value}


def state_of(run: Run) -> str:
    return "complete" if run.is_complete else f"unfinished, epoch {run.records[-1]['epoch']}"


def wall_time(run: Run) -> str:
    """Time from the last start of the command to the end of the run; "" if either time is unknown."""
    started, ended = (_parsed(value) for value in (run.provenance.get("started"), run.summary.get("ended")))
    if started is None or ended is None or (started.tzinfo is None) != (ended.tzinfo is None):
        return ""
    return format_seconds(max(0.0, (ended - started).total_seconds()))


def hosts_of(run: Run) -> str:
    """Hosts of the ranks with their numbers of ranks; only rank 0's while the run is not complete."""
    hosts = (run.summary.get("parts_by_rank") or {}).get("host") or []
    counted = {host: hosts.count(host) for host in hosts}
    return ", ".join(f"{host} ({count} rank{'s' * (count > 1)})" for host, count in counted.items()) or str(
        run.provenance.get("host") or "")


def _sizes(run: Run) -> dict[str, str]:
    summary = run.summary
    sizes = {f"{name} messages": format_bytes(summary[key]) for key, name in
             (("setup_bytes", "setup"), ("evaluation_bytes", "evaluation")) if summary.get(key) is not None}
    if summary.get("width_histogram"):
        sizes["message rows by width"] = format_histogram(summary["width_histogram"])
    if summary.get("method_state_bytes"):
        sizes["kept between epochs, per rank"] = format_bytes(summary["method_state_bytes"])
    if summary.get("assign_seconds"):
        sizes["seconds spent deciding"] = format_number(summary["assign_seconds"])
    return sizes


def _parsed(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(str(value))
    except ValueError:
        return None


def _date(value: object) -> str:
    moment = _parsed(value)
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S") + (" UTC" if moment.tzinfo else "")
