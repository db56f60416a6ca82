"""Faults planted in the models of accelerators, beside those of mutations.py."""

from __future__ import annotations

from mutation import Mutation, Tests

DRAM, TIMELINE = Tests("accelerators/test_dram.py -x"), Tests("accelerators/test_timeline.py -x")
ENGINES = Tests("accelerators/test_mega_engines.py")
MEGA_PASSES = Tests("accelerators/test_mega_passes.py accelerators/test_mega_events.py")
HYGCN, GCNAX = Tests("accelerators/test_hygcn.py"), Tests("accelerators/test_gcnax.py")
GROW, SGCN = Tests("accelerators/test_grow.py"), Tests("accelerators/test_sgcn.py")
ENERGY = Tests("accelerators/test_energy.py")

ACCELERATOR_MUTATIONS = [
    Mutation("accelerators/dram.py", "the bus turns without waiting for written data",
             '"turnaround": [written + t["wtr_s"], to_write]', '"turnaround": [t["wtr_s"], to_write]', DRAM),
    Mutation("accelerators/dram.py", "row misses count as bursts", "bursts, hits, bursts - hits)",
             "bursts, hits, bursts)", DRAM),
    Mutation("accelerators/dram.py", "bursts are as long as what was asked for",
             "Traffic(bursts * burst_bytes, requested,", "Traffic(requested, requested,", DRAM),
    Mutation("accelerators/dram.py", "there is no refresh", 't["refi"] or NO_REFRESH', "NO_REFRESH", DRAM),
    Mutation("accelerators/timeline.py", "a pass begins where the last one began", "begin += timed[-1].cycles",
             "begin = timed[-1].cycles", TIMELINE),
    Mutation("accelerators/timeline.py", "buffers are freed by the last stage always",
             "each.buffered_until % num_stages)", "num_stages - 1)", TIMELINE),
    Mutation("accelerators/timeline.py", "every pass has a DRAM of its own",
             "_timed(each, memory, clock_ghz, begin)", "_timed(each, Memory(dram), clock_ghz, begin)", TIMELINE),
    Mutation("accelerators/timeline.py", "all cycles are stalls of DRAM", "return self.cycles - self.ideal_cycles",
             "return self.cycles", TIMELINE),
    Mutation("accelerators/mega/layout.py", "a package ends a value early", "(run_values - 1) // run_capacity",
             "run_values // run_capacity", Tests("accelerators/test_mega_storage.py")),
    Mutation("accelerators/mega/units.py", "the mean slice is waited for, not the longest",
             "nonzeros.max(axis=1, initial=0)", "nonzeros.mean(axis=1)", ENGINES),
    Mutation("accelerators/mega/units.py", "arcs that do not fill the units are free",
             "return -(-num_arcs // (units // aggregated_dim))", "return num_arcs // (units // aggregated_dim)",
             ENGINES),
    Mutation("accelerators/mega/units.py", "a row ends when one group has had its turn",
             "* stores + len(turns)", "* stores + 1", ENGINES),
    Mutation("accelerators/mega/layout.py", "the last columns of W are forgotten",
             "-(-combined_dim // self.pes_per_tile)", "combined_dim // self.pes_per_tile", ENGINES),
    Mutation("accelerators/mega/layout.py", "buffers have one half", "self.design.buffer_bytes(buffer) // 2",
             "self.design.buffer_bytes(buffer)", MEGA_PASSES),
    Mutation("accelerators/mega/passes.py", "condensed rows share the whole buffer",
             'buffer.dense() if how == "condense" else buffer', "buffer",
             Tests("accelerators/test_mega_traffic.py")),
    Mutation("accelerators/mega/passes.py", "nobody waits for the Condense Unit",
             '    aggregation = np.maximum(aggregation, of_blocks.get("condense", 0))\n', "",
             Tests("accelerators/test_mega_events.py")),
    Mutation("accelerators/workload.py", "rows of later layers lie as in the file",
             "rows.nonzeros[order], rows.bit_width[order]", "rows.nonzeros, rows.bit_width", MEGA_PASSES),
    Mutation("accelerators/subgraphs.py", "all partitions are one", "rows_a_subgraph, seed)\n    if key",
             "seed)\n    if key", Tests("accelerators/test_subgraphs.py")),
    Mutation("accelerators/hygcn.py", "windows are a row too high", "key[at] + height)",
             "key[at] + height + 1)", HYGCN),
    Mutation("accelerators/hygcn.py", "windows fill both halves",
             'design.buffer_bytes("input") // 2 // row_bytes', 'design.buffer_bytes("input") // row_bytes', HYGCN),
    Mutation("accelerators/hybrid_engines.py", "the array fills two cycles late", "(self.rows + self.columns - 2)",
             "(self.rows + self.columns)", HYGCN),
    Mutation("accelerators/gcnax.py", "sums are written and not read again", "2 * sums * (num_loads",
             "sums * (num_loads", GCNAX),
    Mutation("accelerators/gcnax.py", "results fill both halves", 'design.buffer_bytes("output") // 2 //',
             'design.buffer_bytes("output") //', GCNAX),
    Mutation("accelerators/gcnax.py", "the first sums are read", "is_begun & ~is_first, *of_sums", "is_begun, *of_sums",
             GCNAX),
    Mutation("accelerators/grow.py", "rows of other clusters are in the cache",
             "hits = is_cached[source] & (source >= begin) & (source < end)", "hits = is_cached[source]", GROW),
    Mutation("accelerators/grow.py", "the rows of fewest uses are cached", "np.lexsort((-uses, cluster))",
             "np.lexsort((uses, cluster))", GROW),
    Mutation("accelerators/grow.py", "rows of W that are cached are free", "(cached + missed) * size_in_bytes",
             "missed * size_in_bytes", GROW),
    Mutation("accelerators/sgcn.py", "engines share their work evenly",
             "cycles = per_engine.max(axis=1)[:, None]",
             "cycles = -(-per_engine.sum(axis=1) // num_cores(design))[:, None]", SGCN),
    Mutation("accelerators/hybrid_engines.py", "weights are read for every block",
             "np.diff(slice_at)[of_slice] * is_needed", "np.diff(slice_at)[of_slice]", SGCN),
    Mutation("accelerators/energy.py", "a buffer costs what the smallest one does",
             "sram_pj_per_byte(design.buffers[buffer])", "sram_pj_per_byte(8)", ENERGY),
    Mutation("accelerators/energy.py", "leakage is forgotten", "leakage_mw(design) * 1e-3 * seconds", "0.0", ENERGY),
]
