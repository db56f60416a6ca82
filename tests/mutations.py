"""Planted faults, each with the tests that must catch it; jobs/mutations.sh plants them one by one in a copy.

Only data: nothing here runs. `tests/test_mutations.py` keeps the list from rotting.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tests:
    """Arguments of pytest, files below tests/ first, and the ranks that run them."""

    __test__ = False

    arguments: str
    ranks: int = 1


@dataclass(frozen=True)
class Mutation:
    """A fault in a file below hpcgnn/: `old`, which stands there exactly once, becomes `new`."""

    file: str
    fault: str
    old: str
    new: str
    caught_by: Tests


SORTED, PIECES_OF_ROWS = Tests("datasets/test_arcs.py"), Tests("datasets/test_row_files.py")
TREATED = Tests("datasets/test_features.py -k 'any_piece or block'")
STAGES = Tests("shards/test_stages.py -m parallel[1]")
CREW_OF_TWO, PREPROCESS = Tests("shards/test_crew.py", 2), Tests("cli/test_preprocess.py -k 'stage or known_length'")
PLANNED_LOADS, PLANNED_BYTES = Tests("planning/test_loads.py"), Tests("planning/test_messages.py")
PLANNED_SECONDS = Tests("planning/test_exchange_time.py")
CODEC = Tests("ops/test_quantization.py ops/test_quantization_storage.py")
AVERAGE = Tests("training/test_average.py -m parallel[1]")
CLUSTERS, STEP_COUNT = Tests("steps/test_clusters.py"), Tests("adaptive/test_step_count.py")
ROW_CODES = Tests("ops/test_row_codes.py")
HELD = Tests("nn/test_kept_rows.py -m parallel[1] -k 'held or kept or lay or gone'")
HISTORY = Tests("steps/test_history.py")
SUMS = Tests("exchange/test_quantized_sums.py", 2)
STEPS = Tests("steps/test_steps.py -m parallel[1] -k 'constants and 3'")
BETWEEN_STEPS = Tests("steps/test_stop_between_steps.py -m parallel[1] -k '6 and 2-3'")
DEALING, BATCH = Tests("steps/test_dealing.py"), Tests("graph/test_batch.py")
SHARE_INSIDE = Tests("steps/test_steps.py -k share_of_all", 2)
STEPS_BY_SCORE = Tests("steps/test_steps_by_score.py")
FEW_ARCS = Tests("steps/test_steps_by_score.py -m parallel[1] -k few_arcs")
TURN = Tests("steps/test_stop_between_steps.py -m parallel[1] -k 'turns and 2-0'")
OTHER_STEPS = Tests("steps/test_stop_between_steps.py -k can_not_go_on", 2)
ONE_STEP = Tests("steps/test_steps.py -m parallel[1] -k one_step_of_all_rows")
NO_GRADIENT = Tests("steps/test_steps.py -m parallel[1] -k 'no_gradient and (gcnii or sage)'")
STEPS_OF_TWO = Tests("steps/test_steps.py -k 'constants and gcn and 8'", 2)
BOUNDS = Tests("ops/test_bounds.py")
ROTATED = Tests("cuda/test_rotation.py -x")
ROTATED_ROWS = Tests("exchange/test_rotated.py", 2)
PLAN = Tests("exchange/test_plan.py")
IN_MESSAGE, READ_AGAIN = Tests("exchange/test_halo.py -k lie_in_messages", 3), Tests("exchange/test_halo.py -k read", 2)
MAPPED_LAST = Tests("nn/test_kept_rows.py -k mapped_after", 2)
WORK = Tests("partition/test_work.py")
VERTEX_COVER, SUMMED_ROWS = Tests("partition/test_vertex_cover.py"), Tests("exchange/test_pre_aggregation.py", 3)
SUMMED_TRAINING = Tests("training/test_pre_aggregation.py -k 'losses and gcn'", 2)
SUMMED_WEIGHTS = Tests("training/test_pre_aggregation.py -k 'weights and gcn'", 2)
SUMS_IN_NODES = Tests("training/test_pre_aggregation.py -k share_what_comes", 3)
NODES = Tests("exchange/test_compute_node.py", 4)
NODES_OF_TWO = Tests("exchange/test_compute_node.py", 2)
RING = Tests("exchange/test_ring.py -m 'not parallel'")
CARRIER = Tests("exchange/test_carrier.py -k 'overtakes and polling'", 2)
PIECES = Tests("exchange/test_carrier.py -m 'not parallel'")
CLOCK = Tests("exchange/test_traffic.py -m 'not parallel'")
LINK = Tests("exchange/test_timing.py::test_a_link_carries_one_exchange_after_another")
HALO = Tests("exchange/test_halo.py", 2)
PACKED = Tests("exchange/test_halo.py -k packed", 3)
PIPELINE = Tests("exchange/test_pipelined.py", 2)
PREDICTIVE = Tests("exchange/test_predictive.py", 2)
SHARE = Tests("exchange/test_sampling.py -m 'not parallel'")
SAMPLING = Tests("exchange/test_sampling.py", 2)
SKIPPING = Tests("exchange/test_skipping.py", 2)
STATE = Tests("exchange/test_state.py", 2)
STATES = Tests("exchange/test_state.py -m 'not parallel'")
TRAFFIC = Tests("exchange/test_traffic.py", 2)
OVERLAP = Tests("exchange/test_overlap.py -m 'not parallel'")
GRAPH = Tests("graph/test_local_graph.py")
WEIGHTS = Tests("graph/test_edge_weights.py", 3)
WEIGHTED_MODELS = Tests("nn/test_edge_weights.py -k gcn", 2)
PRODUCT = Tests("ops/test_aggregation.py ops/test_two_tables.py")
MODELS = Tests("nn/test_models.py", 2)
BIAS = Tests("nn/test_kept_rows.py -m parallel[1] -k bias_is_added")
BLOCKWISE = Tests("nn/test_kept_rows.py -m parallel[1] -k block_by_block")
ARENA = Tests("ops/test_arena.py ops/test_pieces.py")
REACH = Tests("training/test_reach.py", 2)
SERIAL = Tests("training/test_equals_serial.py -k with_dropout", 2)
POLICIES = Tests("adaptive/test_policies.py -m 'not parallel'")
LEVELS = Tests("adaptive/test_policies.py", 2)
NODE_BITS = Tests("adaptive/test_node_bits.py")
TIME_BITS = Tests("adaptive/test_time_bits.py")
STALENESS = Tests("adaptive/test_staleness.py")
TRIAL = Tests("adaptive/test_width_trial.py")
MOVEMENT = Tests("exchange/test_movement.py")
FLOOR = Tests("adaptive/test_width_floor.py")
COSTS = Tests("adaptive/test_cost_model.py")
GROUPING = Tests("adaptive/test_grouping.py")
SOLVERS = Tests("adaptive/test_solvers.py")
BISECTION = Tests("adaptive/test_bisection.py")
SOLVING = Tests("adaptive/test_solving.py", 3)
CONTROLLER = Tests("adaptive/test_controller.py", 2)
METHODS = Tests("training/test_own_method.py -m 'not parallel'")
CHECKPOINT = Tests("training/test_checkpoint.py -m 'not parallel'")
SELECTION = Tests("training/test_selection.py -m 'not parallel'")
GENERATIONS = Tests("training/test_generations.py")
LACKING = Tests("training/test_rank_state.py -k lacks_a_rank_file", 2)
BOTH_GENERATIONS = Tests("training/test_rank_state.py -k 'file_for_each_rank or checkpoint_before'", 2)
OTHER_PARTITION = Tests("training/test_rank_state.py -k another_partition", 2)
RUN_FOLDER = Tests("training/test_run_folder.py -m 'not parallel'")
RUN_LOCK = Tests("training/test_run_lock.py")
OWN_LOSS = Tests("library/test_fit.py -k own_loss", 3)
BEGIN = Tests("library/test_fit.py -k begin_with_the_weights", 2)
GO_ON = Tests("library/test_fit.py -k goes_on_bit_for_bit", 2)
MOMENTS = Tests("library/test_fit.py -k moments", 2)
RATES = Tests("library/test_fit.py -k rate_of_zero -m 'not parallel'")
REGRESSION = Tests("training/test_regression.py -k scored_as_numpy", 3)
PREDICTIONS = Tests("library/test_fit.py -k predictions", 3)
CONVOLUTIONS = Tests("pyg/test_convolutions.py -k 'equal_those_of_one_process or batch'", 2)
DRAWS = Tests("pyg/test_model.py -k dropped_is_the_same", 2)

MUTATIONS = [
    # Codec: widths, layouts, rounding.
    Mutation("exchange/codec.py", "a backward message goes the forward way",
             "(plan.halo, plan.boundary) if purpose == BACKWARD", "(plan.halo, plan.boundary) if purpose != BACKWARD",
             PLAN),
    Mutation("exchange/codec.py", "payloads are read from the first message's start",
             "payload[rows.index] = first + layout.payload_offset", "payload[rows.index] = layout.payload_offset",
             PACKED),
    Mutation("exchange/codec.py", "overflowing float16 gradients are quantized",
             "rows.dtype == torch.float16", "rows.dtype == torch.bfloat16",
             Tests("exchange/test_halo.py -k overflow", 2)),
    Mutation("exchange/bits.py", "gradients of one node share their draws with its row",
             "part = source + 1 if purpose == BACKWARD else 0", "part = 0", POLICIES),
    Mutation("exchange/bits.py", "later widths are drawn too rarely",
             "1 / (len(self.choices) - number)", "1 / len(self.choices)", POLICIES),
    Mutation("exchange/bits.py", "layers share their drawn widths",
             "layer * MAX_DRAWS + number", "number", POLICIES),
    Mutation("exchange/bits.py", "backward, owner and user change places",
             "(destination, source) if purpose == BACKWARD", "(destination, source) if purpose != BACKWARD",
             LEVELS),
    Mutation("exchange/bits.py", "a row is drawn with the opposite probability",
             "1.0 - probability, node_id", "probability, node_id", SHARE),
    Mutation("ops/quantization.py", "a row's last bits get no byte", "* dim + 7) // 8", "* dim) // 8", CODEC),
    Mutation("ops/quantization.py", "8 bits go without parameters",
             "has_parameters = bit_width <= LARGEST", "has_parameters = bit_width < LARGEST", CODEC),
    Mutation("ops/quantization.py", "a payload begins where it ends",
             "np.cumsum(row_bytes) - row_bytes", "np.cumsum(row_bytes)", CODEC),
    Mutation("ops/quantization.py", "a row that is NaN is sent",
             "    refuse_bad_row(found, node_id, key)\n", "    del found\n", CODEC),
    Mutation("ops/cuda/quantization.py", "rotated rows are read by the draws that would round them",
             "key.rotation(), rows, accumulate", "key, rows, accumulate", ROTATED),
    Mutation("ops/cuda/rotation.py", "rows that lie in scratch share a place",
             "self.num_blocks(num_rows) * (self.threads // self.lanes) * self.stride",
             "self.num_blocks(num_rows) * self.stride", ROTATED),
    Mutation("ops/cuda/rotation.py", "two rows of a warp meet in the banks", " + BANKS // 2", "", ROTATED),
    Mutation("ops/cuda/kernels/rotation.cuh", "signs of the last pass are those of its first word",
             "__funnelshift_r(signs, sign_word(r, pass, word + 1), static_cast<uint32_t>(shift))", "signs", ROTATED),
    Mutation("ops/cuda/kernels/rotation.cuh", "passes are undone in the order that they were made in",
             "is_inverse ? num_passes - 1 - n : n", "n", ROTATED),
    Mutation("ops/cuda/kernels/rotation.cu", "a step is rounded to infinity",
             "return bits < LARGEST_BF16 ? bits : LARGEST_BF16;", "return bits;", ROTATED),
    Mutation("ops/host/quantization.py", "rows are turned by the draws that would round them",
             "key.rotation().stream if", "key.stream if", Tests("ops/test_rotated.py -x")),
    Mutation("ops/host/quantization.py", "seed and epoch change places in the key",
             "key.seed, key.epoch,", "key.epoch, key.seed,", CODEC),
    Mutation("ops/host/quantization.py", "the key forgets purpose and part", "key.stream,", "key.layer,", CODEC),
    Mutation("ops/host/quantization.py", "adding and assigning change places",
             "_rotation_stream(layout, key), accumulate,", "_rotation_stream(layout, key), not accumulate,", CODEC),
    Mutation("ops/host/quantization.py", "a first row outside the table is not refused",
             "if found < -1:", "if found < -2:", BOUNDS),
    # Exchange: who sends what, when it is read, and what is kept.
    Mutation("exchange/compute_node.py", "the first reader is every owner's gateway",
             "return begin + owner % num_readers", "return begin", NODES),
    Mutation("exchange/compute_node.py", "the last reader decides how near a row is to the loss",
             "np.minimum.reduceat", "np.maximum.reduceat", NODES),
    Mutation("exchange/compute_node.py", "rows of the own node travel too",
             "node_of[node_of != mates[0]]", "node_of", NODES_OF_TWO),
    Mutation("exchange/compute_node.py", "one node of many ranks is worth it",
             " and comm.allreduce(node.size, MPI.MIN) < comm.size", "", NODES_OF_TWO),
    Mutation("planning/loads.py", "a plan counts a row once for each of its readers in a node",
             "target[is_far], owner, node, hops", "target[is_far], owner, owner, hops",
             Tests("planning/test_bytes.py -k 'vanilla-sage-3-fp32-2'", 4)),
    Mutation("training/graph_info.py", "every rank is told of the first part",
             "statistics={part: row}), None) for part, row", "statistics={0: row}), None) for part, row",
             Tests("training/test_graph_info.py", 2)),
    Mutation("exchange/shared_rows.py", "gradients of the own node's rows are lost",
             "        self.shared.add_own(self.own, rows)\n", "", NODES_OF_TWO),
    Mutation("exchange/shared_rows.py", "rows are read before others have laid theirs",
             "            self._meet(arrival.traffic)\n", "", NODES_OF_TWO),
    Mutation("exchange/shared_rows.py", "gradients are summed before others have laid theirs",
             "            self._meet(traffic)\n", "", NODES_OF_TWO),
    Mutation("exchange/shared_memory.py", "both halves are one",
             "start = half * (self.num_bytes // HALVES)", "start = 0", NODES_OF_TWO),
    Mutation("training/session.py", "only the own coefficients weigh a shared row's error",
             "self.exchange.sent_home(self.graph.halo_squares(reduction))",
             "self.graph.halo_squares(reduction)[:self.plan.num_halo]",
             Tests("training/test_nodes_aware.py -k widths", 3)),
    Mutation("partition/vertex_cover.py", "targets that lie on a path are not covered",
             "        has_target[columns] = True\n", "        has_target[columns[:1]] = True\n", VERTEX_COVER),
    Mutation("partition/vertex_cover.py", "every source is covered", "return ~is_reached, has_target",
             "return np.ones_like(is_reached), has_target", VERTEX_COVER),
    Mutation("partition/work.py", "the last layer computes all rows within a hop", "np.maximum(num_layers - hops, 0)",
             "np.maximum(num_layers + 1 - hops, 0)", WORK),
    Mutation("partition/work.py", "evaluations cost nothing", ".astype(np.int64) + num_layers", ".astype(np.int64)",
             WORK),
    Mutation("partition/work.py", "seconds are not of the work that took them",
             "seconds / np.maximum(work, 1.0) / mean", "seconds / seconds.mean()", WORK),
    Mutation("report/measured.py", "the first evaluation counts", "tables[1:] or tables", "tables",
             Tests("report/test_measured.py")),
    Mutation("exchange/pre_aggregation.py", "sums of another rank have the same id", "* part.num_parts + sender",
             "* part.num_parts", SUMS_IN_NODES),
    Mutation("exchange/pre_aggregation.py", "what is sent is not sorted by its hops",
             "np.argsort(hops, kind=\"stable\")", "np.arange(len(hops))", SUMMED_ROWS),
    Mutation("exchange/pre_aggregation.py", "a sum is as important as its first source",
             "np.maximum.reduceat(values, begin)", "values[begin]", SUMMED_ROWS),
    Mutation("exchange/outgoing_rows.py", "what is summed is not scaled by its degree",
             "weight * factor[sums.source]", "weight", SUMMED_TRAINING),
    Mutation("exchange/outgoing_rows.py", "gradients of sums stay where they came",
             "        self.outgoing.add_gradients(", "        len(gradients) or self.outgoing.add_gradients(",
             SUMMED_TRAINING),
    Mutation("graph/far_arcs.py", "a sum is scaled as a row", "== NO_ROW, 0, degree", "== NO_ROW, 1, degree",
             SUMMED_TRAINING),
    Mutation("graph/local_graph.py", "rows are summed before they are masked", "True) if self.sends_sums else",
             "True) if False else", SUMMED_TRAINING),
    Mutation("training/exchanges.py", "weights of arcs are not in the degrees of what is sent",
             "if part.edge_weight is not None:", "if False:", SUMMED_WEIGHTS),
    Mutation("exchange/plan.py", "rounds receive from where they send",
             "(rank - i) % num_ranks", "(rank + i) % num_ranks", PLAN),
    Mutation("exchange/plan.py", "a round that brings rows and sends none is left out",
             " | {(rank - peer) % num_ranks for peer in peers}", "", PLAN),
    Mutation("exchange/plan.py", "who only sends to a rank is no peer of it",
             " | (np.diff(part.halo_offset) > 0)", "", PLAN),
    Mutation("exchange/agreement.py", "what parts agree on does not depend on their rows",
             '"{} {} {}".format', '"{} {}".format', Tests("exchange/test_agreement.py", 2)),
    Mutation("exchange/plan.py", "halo rows have places in the halo, not in the pair's list",
             "rows - rows[:1]", "rows", SOLVING),
    Mutation("exchange/plan.py", "a sample is cut by the wrong numbers",
             "received[rows.index]", "received[rows.position]", Tests("exchange/test_sampling.py -k expects", 3)),
    Mutation("exchange/arena.py", "messages are looked for where no padding lies between them",
             "np.cumsum([_padded(size) for size in sizes])", "np.cumsum(sizes)", PACKED),
    Mutation("exchange/arena.py", "a buffer stays when shorter messages come",
             "if self.is_passing:\n            self._receive", "if False:\n            self._receive", RING),
    Mutation("exchange/arena.py", "messages that are left out are lost",
             "is_passing and transport is HOST", "transport is HOST", Tests("exchange/test_skipping.py", 2)),
    Mutation("exchange/ring.py", "a link carries all exchanges at once",
             "max(now, self._is_free_at) + num_bytes", "now + num_bytes", LINK),
    Mutation("exchange/carrier.py", "pieces don't give way to sums over the ranks",
             "if not self._is_giving_way:", "if True:", CARRIER),
    Mutation("exchange/carrier.py", "the rest of a message is no piece",
             "return -(-len(message) // PIECE_BYTES)", "return len(message) // PIECE_BYTES", PIECES),
    Mutation("exchange/carrier.py", "slow answers let more be on their way",
             "return max(most - 1, LEAST_SENT)", "return min(most + 1, MOST_SENT)", PIECES),
    Mutation("exchange/traffic.py", "what is waited for counts as hidden",
             "if not self._num_waiting:", "if True:", CLOCK),
    Mutation("exchange/kinds/kept.py", "one arena serves every epoch",
             "return self._arenas[self._turn]", "return self._arenas[0]", PIPELINE),
    Mutation("exchange/arrival.py", "rows may be an epoch too old",
             "<= self.age <= self.max_age", "<= self.age <= self.max_age + 1", PIPELINE),
    Mutation("exchange/arrival.py", "a message is learned twice",
             "self.is_applied = True", "self.is_applied = False", PREDICTIVE),
    Mutation("exchange/kinds/kept.py", "received rows are not restored",
             "        self.table.restore(state[\"table\"], device)\n", "", STATE),
    Mutation("exchange/arrival.py", "bytes are saved where a table holds them, and not where they are needed",
             "buffer[:0] if self.is_applied else buffer", "buffer if self.is_applied else buffer[:0]", STATE),
    Mutation("exchange/halo.py", "ranks share the draws of a node's gradients",
             "key_of_sender(CounterKey(site.seed, site.epoch, purpose, site.layer), self._plan.rank)",
             "CounterKey(site.seed, site.epoch, purpose, site.layer)", HALO),
    Mutation("exchange/arrival.py", "gradients from home replace instead of add",
             "decode(self.messages, self.receive, self.keys, rows, self.is_gradient)",
             "decode(self.messages, self.receive, self.keys, rows, False)", HALO),
    Mutation("exchange/kinds/sampled.py", "sampled gradients are scaled the wrong way",
             "outgoing.rows / self._share", "outgoing.rows * self._share", SAMPLING),
    Mutation("exchange/kinds/sampled.py", "sampled rows are not scaled", "rows /= self._share", "rows /= 1", SAMPLING),
    Mutation("exchange/kinds/sampled.py", "rows left out keep what lay there",
             "rows.index_fill_(0, on_device(absent, rows), 0)", "on_device(absent, rows)", SAMPLING),
    Mutation("exchange/kinds/sampled.py", "the first epoch's sample serves for ever",
             "if self._sample is None or self._sample[0] != drawn:", "if self._sample is None:", SAMPLING),
    Mutation("exchange/halo.py", "layouts of the first sample serve for ever",
             "self._bit_plan, self._kind.drawn_for(site), site.reach", "self._bit_plan, None, site.reach", SAMPLING),
    Mutation("exchange/trace.py", "an epoch is traced together with the one before",
             "            self._found, self._unread = {}, []\n", "            pass\n", TRAFFIC),
    Mutation("exchange/kinds/kept.py", "a synchronous epoch forgets the messages before it",
             "            sent.before = before\n", "            pass\n", PREDICTIVE),
    Mutation("exchange/halo.py", "evaluation travels at training's widths",
             "if not site.is_training:\n            return self._full_codec",
             "if self._full_codec is None:\n            return self._full_codec", TRAFFIC),
    Mutation("exchange/traffic.py", "bytes of the payload are not counted",
             "        self.payload_bytes += messages.payload_bytes\n", "", TRAFFIC),
    Mutation("exchange/kinds/kept.py", "an asynchronous epoch reads its own rows",
             "read = before if is_stale else sent", "read = sent", PIPELINE),
    Mutation("exchange/kinds/skipped.py", "rows are sent an epoch early",
             "epoch - self._sent_epoch > self._staleness", "epoch - self._sent_epoch >= self._staleness", SKIPPING),
    Mutation("exchange/kinds/skipped.py", "a change is not taken relative to the rows",
             "self._change * self._last.norm()", "self._change", SKIPPING),
    Mutation("exchange/kinds/skipped.py", "rows that did not come count as new",
             "self._arrived_epoch[everyone] = epoch", "self._arrived_epoch[:] = epoch", SKIPPING),
    Mutation("exchange/kinds/skipped.py", "rows that did not come are turned back by this epoch's signs",
             "        arrival.sent_epochs = broadcaster.arrived_epoch\n", "", ROTATED_ROWS),
    Mutation("exchange/codec.py", "gradients of all ranks are turned by the same signs",
             "part=sender if key.purpose == BACKWARD else 0", "part=0", ROTATED_ROWS),
    Mutation("exchange/codec.py", "rotated codes are summed from their message",
             "if any(layout.is_rotated for layout in self.receive_layouts):", "if False:",
             Tests("exchange/test_rotated.py -m 'not parallel'")),
    Mutation("exchange/arrival.py", "a message that was kept is taken for affine",
             "MessageLayout.build(widths, dim, str(state[\"code\"]))", "MessageLayout.build(widths, dim)", STATE),
    Mutation("exchange/trace.py", "the norm of a rotated row is taken for its range",
             "(np.sqrt(6) * norm[bit_width])", "norm[bit_width]", Tests("exchange/test_rotated.py -m 'not parallel'")),
    Mutation("exchange/kinds/skipped.py", "received rows are not restored",
             "        fill(received[0], state[\"bytes\"])\n", "", STATE),
    Mutation("exchange/kinds/tables.py", "the running mean weighs past and present the other way",
             "1.0 - self._smoothing", "self._smoothing", PIPELINE),
    Mutation("exchange/kinds/tables.py", "a missed epoch resets nothing",
             "self._rows is None or self._epoch != epoch - 1 or", "self._rows is None or", PREDICTIVE),
    Mutation("exchange/kinds/tables.py", "the sender forgets what it had sent before",
             "dequantize_rows(buffers[place], order, listed.node_id, layout, held, accumulate=True, key=key)",
             "dequantize_rows(buffers[place], order, listed.node_id, layout, held, key=key)", PREDICTIVE),
    Mutation("exchange/kinds/tables.py", "differences are rounded by draws",
             "quantize_rows(*arguments, rounding=\"nearest\")", "quantize_rows(*arguments)", PREDICTIVE),
    Mutation("exchange/kinds/sampled.py", "senders draw another sample",
             "key = CounterKey(seed, epoch, SAMPLE, 0)", "key = CounterKey(seed, epoch, SAMPLE, 1)",
             Tests("exchange/test_sampling.py -k expects", 2)),
    Mutation("exchange/state.py", "an array brings those before it along",
             "[end - length:end]", "[:end]", STATES),
    Mutation("exchange/kinds/kept.py", "restored messages name rows of the other direction",
             "plan.boundary if self._is_gradient", "plan.boundary if not self._is_gradient", STATE),
    Mutation("exchange/kinds/kind.py", "what is kept outlives a training",
             "        self._kept = {}\n\n", "\n", SKIPPING),
    Mutation("exchange/kinds/kind.py", "what is kept counts as no memory",
             "    keeps_state = True\n", "    keeps_state = False\n", STATE),
    # Aggregation: matrices, masks and gradients.
    Mutation("graph/normalization.py", "a mean forgets its division",
             "1.0 / np.where(degree > 0, degree, 1)", "np.ones(len(degree))", GRAPH),
    Mutation("graph/normalization.py", "a degree lacks the self-loop",
             "np.sqrt(degree + 1)", "np.sqrt(np.maximum(degree, 1))", GRAPH),
    Mutation("graph/local_graph.py", "exchanges are not counted",
             "current.num_halo_calls, current.num_halo_calls + 1", "current.num_halo_calls, current.num_halo_calls",
             GRAPH),
    Mutation("graph/local_graph.py", "layers share a dropout mask", "DROPOUT, layer)", "DROPOUT, 0)", GRAPH),
    Mutation("graph/local_graph.py", "gradients of halo rows stay",
             "        ctx.graph.take_home(gradient[num_inner:], total, ctx.site)\n", "", HALO),
    Mutation("graph/local_graph.py", "own gradients are lost",
             "total = gradient[:num_inner].clone()", "total = torch.zeros_like(gradient[:num_inner])", HALO),
    Mutation("graph/reductions.py", "the variance of a message takes coefficients unsquared",
             "(row_scale[transposed.indices] * weight) ** 2", "row_scale[transposed.indices] * weight", GRAPH),
    Mutation("graph/reductions.py", "weights keep the order of rows on the way back",
             "None if edge_weight is None else resident(by_column.data))", "resident(edge_weight))", WEIGHTS),
    Mutation("graph/local_graph.py", "weights have no part in a degree",
             "in_degree if weighted_degree is None else weighted_degree", "in_degree", WEIGHTS),
    Mutation("exchange/reach.py", "weights stay where rows were", "((\"edge_weight\", entry)",
             "((\"edge_weight\", slice(None))", WEIGHTED_MODELS),
    Mutation("ops/spans.py", "central and marginal rows change places",
             "ranges if not is_marginal[span[0]]", "ranges if is_marginal[span[0]]", OVERLAP),
    Mutation("graph/hop.py", "the next row's entries count as this one's", "matrix.indices[first:last] < limit",
             "matrix.indices[first:last] <= limit", REACH),
    Mutation("nn/neighborhood.py", "halo rows get the masks of inner rows",
             "return self.graph.num_inner + start, self.graph.num_inner + stop", "return start, stop",
             SERIAL),
    Mutation("nn/orders.py", "gradients that came home are not added",
             "            arrival.finish(of_rows)\n", "            arrival.wait()\n", MODELS),
    Mutation("nn/orders.py", "a layer is written over sums that are kept",
             "keeps_sums = neighborhood.has_backward", "keeps_sums = not neighborhood.has_backward", HELD),
    Mutation("nn/orders.py", "sums are held through the pass back", "        kept.give_back(1)\n", "", HELD),
    Mutation("exchange/carrier.py", "a flight and its messages hold each other",
             "self.outgoing, self.incoming = [], []", "pass",
             Tests("exchange/test_pipelined.py -m parallel[2] -k gone_at_once", 2)),
    Mutation("exchange/ring.py", "a transfer holds what it has sent", "self._delivery = None      #", "pass      #",
             Tests("exchange/test_ring.py -m parallel[2] -k gives_its_memory", 2)),
    Mutation("nn/orders.py", "rows mapped by themselves have no bias", "            here[:] = bias\n",
             "            here[:] = 0\n", BIAS),
    Mutation("nn/orders.py", "all blocks have the gradients of the first",
             "part = gradient[start:start + len(rows)]", "part = gradient[:len(rows)]", BLOCKWISE),
    Mutation("nn/neighborhood.py", "all blocks have the masks of the first",
             "self.activation.part(start, stop, self.graph.ids(start, stop))",
             "self.activation.part(start, stop, self.graph.ids(0, stop - start))", BLOCKWISE),
    Mutation("nn/neighborhood.py", "the norm's gradient is that of one block", "torch.stack(parts).sum(0)", "parts[0]",
             BLOCKWISE),
    Mutation("ops/pieces.py", "moved pages lie over each other", "start + num_moved, part[1])", "start, part[1])",
             ARENA),
    Mutation("ops/pieces.py", "memory that was moved counts as new", "self.num_filled += num_bytes - num_moved",
             "self.num_filled += num_bytes", ARENA),
    Mutation("ops/arena.py", "half of the pages stay", "        self._move(Move(move.source, move.target, half))\n", "",
             ARENA),
    Mutation("ops/arena.py", "pages that can't be moved are kept",
             "_LIBC.madvise(self.address + move.source, move.num_bytes, mmap.MADV_DONTNEED)", "pass", ARENA),
    Mutation("nn/orders.py", "rows behind an activation are kept, too",
             "neighborhood.is_input or neighborhood.makes_again", "neighborhood.is_input", HELD),
    Mutation("ops/cross_entropy.py", "all blocks have the labels of the first",
             ".gather(1, labels[rows, None])", ".gather(1, labels[:rows.stop - rows.start][:len(chosen[rows]), None])",
             Tests("ops/test_cross_entropy.py")),
    Mutation("exchange/codec.py", "bytes between two messages are read as rows",
             " or 8 * first != place * self.dim * min(found)", "", IN_MESSAGE),
    Mutation("exchange/codec.py", "rows that do not all come lie in their messages",
             "if place == self.num_halo and found", "if found", Tests("exchange/test_halo.py -k some_of", 2)),
    Mutation("exchange/sender.py", "rows that a later epoch reads are changed in their messages",
             "arena is self._arena and arena.is_passing", "arena.is_passing", READ_AGAIN),
    Mutation("nn/neighborhood.py", "gradients of halo rows are not mapped",
             "of_halo if then is None else then(of_halo)", "of_halo", MAPPED_LAST),
    Mutation("nn/neighborhood.py", "gradients of inner rows are not mapped",
             "                then(reached[slice(*span)])\n", "                pass\n", MAPPED_LAST),
    Mutation("nn/kept_rows.py", "rows are kept as they are", "None if graph is None or values is None",
             "None if True or values is None", HELD),
    Mutation("ops/pointwise.py", "what dropout left is not scaled where rows were stored",
             "scale = DRAW_LEVELS / (DRAW_LEVELS - threshold)", "scale = 1.0", ROW_CODES),
    Mutation("ops/pointwise.py", "what passed is told from codes", "everything_passes, self.activation.eps",
             "bias, self.activation.eps", ROW_CODES),
    Mutation("ops/row_codes.py", "blocks round alike", "self.node_id[span], layout, self.key",
             "self.node_id[:span.stop - span.start], layout, self.key", ROW_CODES),
    Mutation("graph/local_graph.py", "layers round alike", "current.num_stored, current.num_stored + 1",
             "current.num_stored, current.num_stored", Tests("nn/test_kept_rows.py -m parallel[1] -k count_nothing")),
    Mutation("nn/orders.py", "a bias has the wrong sign", "out[start:stop] += bias", "out[start:stop] -= bias", MODELS),
    Mutation("nn/orders.py", "a mask is forgotten on the way back",
             "neighborhood.drop_gradient(of_rows)\n            arrival.finish(of_rows)", "arrival.finish(of_rows)",
             MODELS),
    Mutation("nn/convolution.py", "the wider side travels", "self.out_dim < self.in_dim", "self.out_dim > self.in_dim",
             MODELS),
    Mutation("nn/convolution.py", "a sum where a mean belongs", "\"mean\", has_self=True", "\"sum\", has_self=True",
             MODELS),
    Mutation("ops/host/aggregation.py", "a product is not added", "is_added, as_bytes(out)", "False, as_bytes(out)",
             PRODUCT),
    Mutation("ops/host/aggregation.py", "scales of rows and columns change places",
             "matrix.row_scale, matrix.column_scale,", "matrix.column_scale, matrix.row_scale,", PRODUCT),
    # Widths: what is decided, and from what.
    Mutation("adaptive/node_bits.py", "a node at a percentile has not reached it", "side=\"right\"", "side=\"left\"",
             NODE_BITS),
    Mutation("adaptive/node_bits.py", "the base width is a ceiling", "np.maximum(", "np.minimum(", NODE_BITS),
    Mutation("adaptive/time_bits.py", "a slowing loss narrows", "(1 if slowing else -1)", "(-1 if slowing else 1)",
             TIME_BITS),
    Mutation("adaptive/time_bits.py", "the rate is positive while the loss rises",
             "(before - mean_loss) / seconds", "(mean_loss - before) / seconds", TIME_BITS),
    Mutation("adaptive/time_bits.py", "a window is an epoch short",
             "rates[-1] < rates[-1 - window]", "rates[-1] < rates[-window]", TIME_BITS),
    Mutation("adaptive/staleness.py", "noise counts as motion",
             "max(0.0, twice - once + deviations * math.sqrt(variance)) / 3", "once", STALENESS),
    Mutation("adaptive/staleness.py", "an estimate is believed as it is", "self._share(site, DEVIATIONS)",
             "self._share(site, 0.0)", STALENESS),
    Mutation("adaptive/staleness.py", "motion is a share of its square", "math.sqrt(motion / squares)",
             "motion / squares", STALENESS),
    Mutation("exchange/movement.py", "the sample is the first rows",
             "* num_sent // max(1, min(num_sent, SAMPLED_ROWS))", "", MOVEMENT),
    Mutation("exchange/movement.py", "an epoch is compared with itself",
             "self._earlier = [now, *before[:EPOCHS_BACK - 1]]", "self._earlier = [now, now]", MOVEMENT),
    Mutation("steps/clusters.py", "steps are dealt alike in every epoch", "default_rng([seed, epoch, PURPOSE])",
             "default_rng([seed, PURPOSE])", CLUSTERS),
    Mutation("steps/exchange.py", "rows of a step are not kept",
             "table.keep(self._rows[:len(h)], h.detach(), key)", "pass", STEPS),
    Mutation("steps/exchange.py", "rows that arrive are not kept",
             "self._table.keep(self._far[:self._num_fresh], fresh, self._key)", "pass", STEPS_OF_TWO),
    Mutation("training/average.py", "the model keeps its average", "            self._write(own)",
             "            pass", AVERAGE),
    Mutation("training/trainer.py", "scores are of the last step's weights", "with self.learner.average.in_model():",
             "if True:", AVERAGE),
    Mutation("steps/kept_rows.py", "codes of one row lie where another's do",
             "self._node_id[at], self._layout.at(at),\n                      key",
             "self._node_id[at], self._layout.at(np.sort(at)),\n                      key", HISTORY),
    Mutation("steps/step_graphs.py", "an epoch that goes on begins at its first step", "range(first, num_steps)",
             "range(num_steps)", BETWEEN_STEPS),
    Mutation("training/steps_taken.py", "losses before the stop are forgotten", "cls(state[\"losses\"].tolist(),",
             "cls([0.0] * len(state[\"losses\"]),", BETWEEN_STEPS),
    Mutation("graph/step_graph.py", "a masked input is that of another layer's key",
             "aggregate(reduction, probability, key)",
             "aggregate(reduction, probability, key._replace(layer=7))", ONE_STEP),
    Mutation("graph/step_graph.py", "a masked input is summed for rows in reach alone",
             "multiply(graph.matrix(reduction), masked)",
             "multiply(graph.matrix(reduction).rows(0, graph.num_within[-1]), masked)", NO_GRADIENT),
    Mutation("steps/exchange.py", "gradients of fresh rows stay", "if not self._is_shared:", "if True:", STEPS_OF_TWO),
    Mutation("training/trainer.py", "a step's loss is not weighted",
             "/ (objective.num_global[\"train\"] / moment.num_steps)",
             "/ objective.num_global[\"train\"]", STEPS),
    Mutation("exchange/quantized_sums.py", "a share is not summed", "layout, shares[rank], True,",
             "layout, shares[rank], False,", SUMS),
    Mutation("graph/local_graph.py", "rows of history are mapped by old weights", "return self._exchange.reads_history",
             "return False", STEPS),
    Mutation("graph/batch.py", "a gradient goes one hop", "for near in range(num_hops):", "for near in range(1):",
             BATCH),
    Mutation("graph/batch.py", "what rows read inside a batch is not computed", "        if counts:",
             "        if False:", BATCH),
    Mutation("steps/step_graphs.py", "gradients of other ranks go to rows of none",
             "self._shared_rows() if self._is_shared else None", "None", STEPS_OF_TWO),
    Mutation("nn/neighborhood.py", "rows that no gradient reaches have what was there",
             "of_rows[:self.hop.back_in], 0", "of_rows[:self.hop.back_in], 1", NO_GRADIENT),
    Mutation("steps/dealing.py", "nodes are dealt alike in every epoch", "SeedSequence([seed, epoch, PURPOSE])",
             "SeedSequence([seed, PURPOSE])", DEALING),
    Mutation("adaptive/step_count.py", "rows stay one by one however the loss falls",
             "max(LEAST_EARLY_FALL * before, LEAST_OF_FIRST * first)", "-1.0", STEP_COUNT),
    Mutation("training/trainer.py", "moments of rows one by one stay", "            learner.optimizer.forget()",
             "            pass", TURN),
    Mutation("steps/step_graphs.py", "an epoch goes on with rows of other steps",
             "(begun[\"num_steps\"], bool(begun.get(BY_ROW, False))) == (num_steps, by_row)",
             "begun[\"num_steps\"] == num_steps", OTHER_STEPS),
    Mutation("adaptive/step_count.py", "steps never become fewer", "self.count // FEWER", "self.count", STEP_COUNT),
    Mutation("adaptive/step_count.py", "evaluations that are no better are not counted",
             "state.num_worse + 1", "0", STEP_COUNT),
    Mutation("training/trainer.py", "every evaluation is the best", "progress.evaluations_since_best == 0", "True",
             STEPS_BY_SCORE),
    Mutation("adaptive/step_count.py", "steps of clusters stay however few arcs they hold",
             "arcs_gained(state.count, share_inside) < LEAST_GAIN", "False", STEP_COUNT),
    Mutation("adaptive/step_count.py", "arcs between clusters never meet in a step", " + (1 - share_inside)", "",
             STEP_COUNT),
    Mutation("training/trainer.py", "nobody tells how many arcs clusters hold",
             "session.steps.clusters.inside if plan.in_clusters else None", "None", FEW_ARCS),
    Mutation("steps/clusters.py", "arcs of other ranks are not counted", "comm.allreduce(counted)", "counted",
             SHARE_INSIDE),
    Mutation("adaptive/width_trial.py", "a wider base is kept whatever it brings",
             "> max(FASTER * self.fall, NOTICEABLE)", "> -1", TRIAL),
    Mutation("adaptive/width_floor.py", "periods grow without end", "min(num_before, MOST_GROWN)", "num_before", TRIAL),
    Mutation("adaptive/time_bits.py", "a loss that stands does not slow", "fallen <= FLAT * last or ", "", TIME_BITS),
    Mutation("adaptive/width_floor.py", "a floor never ends",
             "max(0, self.epochs_left - 1)", "max(0, self.epochs_left)", FLOOR),
    Mutation("adaptive/cost_model.py", "a ring runs backward",
             "rank[None, :] - rank[:, None]", "rank[:, None] - rank[None, :]", COSTS),
    Mutation("adaptive/assigning.py", "a clock limits the solver of deterministic runs",
             "self._seconds if is_measured else None", "self._seconds", SOLVING),
    Mutation("adaptive/cost_model.py", "peers that were not timed are taken for those of the other side of the node",
             "typical[peer in near]", "typical[peer not in near]", COSTS),
    Mutation("adaptive/bisection.py", "a second costs twice what it does",
             "sum(gained) > price", "sum(gained) > 2 * price", BISECTION),
    Mutation("adaptive/bisection.py", "a rank looks at its own seconds alone", "reductions.max(np.array(seconds))",
             "np.array(seconds)", BISECTION),
    Mutation("adaptive/bisection.py", "rounds share seconds unevenly", "(distance - 1) * MAX_ROUNDS // num_rounds",
             "np.minimum(distance - 1, MAX_ROUNDS - 1)", BISECTION),
    Mutation("adaptive/shared_budget.py", "ranks spend the same bits", "before[number] + spent", "spent", BISECTION),
    Mutation("adaptive/shared_budget.py", "what gains most is bought last",
             "price >= middle", "price <= middle", BISECTION),
    Mutation("adaptive/highs.py", "rounds without a limit of time have none at all",
             'return {"node_limit": NODE_LIMIT}', "return {}", Tests("adaptive/test_assigner.py")),
    Mutation("config.py", "a preset's settings of other methods stay", "*fields(find_method(method)))}",
             "*known_settings())}", Tests("test_config.py")),
    Mutation("adaptive/problem.py", "bits count as bytes", "* self.num_values / 8", "* self.num_values", SOLVERS),
    Mutation("adaptive/problem.py", "the variance takes the number of codes, not of steps",
             "(2.0 ** np.asarray(widths) - 1)", "(2.0 ** np.asarray(widths))", SOLVERS),
    Mutation("adaptive/greedy.py", "a gain is a cost", "cost = rate * seconds - weight * gain",
             "cost = rate * seconds + weight * gain", SOLVERS),
    Mutation("adaptive/budget.py", "a pair may become the longest",
             " and pair_seconds[pair] + seconds <= allowed[pair]", "", SOLVERS),
    Mutation("adaptive/grouping.py", "groups have falling betas", "np.argsort(beta,", "np.argsort(-beta,", GROUPING),
    Mutation("adaptive/grouping.py", "rows get widths in the groups' order", "rows[order] = ", "rows[:] = ", GROUPING),
    Mutation("adaptive/solving.py", "coefficients weigh gradients, not rows",
             "if purpose != BACKWARD:", "if purpose == BACKWARD:", SOLVING),
    Mutation("adaptive/controller.py", "the first epoch is asynchronous", "self._has_rows and self._asynchrony",
             "self._asynchrony", CONTROLLER),
    Mutation("adaptive/controller.py", "a restored run forgets that it was held",
             "self.base, self._is_held = state[\"base\"], state[\"is_held\"]", "self.base = state[\"base\"]",
             CONTROLLER),
    Mutation("adaptive/policies.py", "ranges are forgotten before the base changes",
             "self._traces = traces or self._traces", "self._traces = traces", POLICIES),
    Mutation("methods/choosing.py", "no epoch may read rows of the one before",
             "return Kept()", "return Kept(is_pipelined=False)", METHODS),
    Mutation("methods/pipegcn.py", "smoothing is not handed on",
             "Kept(smoothing=self.smoothing)", "Kept()", METHODS),
    Mutation("methods/sancus.py", "the bound of staleness is not the user's",
             "Skipped(self.skip_change, self.staleness)", "Skipped(self.skip_change, 4)", METHODS),
    Mutation("methods/bns.py", "all rows are kept",
             "Sampled(self.share) if self.share < 1.0 else Fresh()", "Fresh()", METHODS),
    # Checkpoint: what a run leaves, and from what it goes on.
    Mutation("training/checkpoint.py", "no evaluation counts as fruitless",
             "self.evaluations_since_best += 1", "self.evaluations_since_best = 0", SELECTION),
    Mutation("training/checkpoint.py", "the best of one seed is that of the next",
             "self.epoch, self.best, self.best_epoch, self.evaluations_since_best = 0, None, 0, 0", "self.epoch = 0",
             SELECTION),
    Mutation("training/checkpoint.py", "the last weights are saved as the best",
             "getattr(checkpoint, group)", "checkpoint.model", CHECKPOINT),
    Mutation("training/checkpoint.py", "results of another number of trainings are taken",
             "progress.seed_index == len(progress.finished)", "progress.seed_index >= 0", CHECKPOINT),
    Mutation("training/checkpoint.py", "weights that are not finite are taken",
             "if not torch.isfinite(tensor).all():", "if torch.isnan(tensor).all():", CHECKPOINT),
    Mutation("training/generations.py", "the checkpoint before is lost",
             "                os.replace(self.current, self.previous)\n", "                pass\n", GENERATIONS),
    Mutation("training/generations.py", "a damaged checkpoint is thrown away",
             "os.replace(self.current, self._damaged)", "self.current.unlink()", GENERATIONS),
    Mutation("training/generations.py", "the complaint is of the wrong file",
             "raise failure from None", "raise", GENERATIONS),
    Mutation("training/saving.py", "the checkpoint before loses its rank files",
             "token, *([last_token] if last_token else [])", "token", BOTH_GENERATIONS),
    Mutation("training/saving.py", "ranks' memory is not written", "    write_rank_state(token)\n", "",
             BOTH_GENERATIONS),
    Mutation("training/rank_state.py", "a rank keeps what another one lost",
             "    session.forget()\n    controller.forget_rank()", "    controller.forget_rank()",
             Tests("training/test_rank_state.py -k lost_is_kept_by_none", 2)),
    Mutation("training/rank_state.py", "memory of another partition is taken",
             "if said[\"layout\"] != session.plan.digest:", "if said[\"layout\"] == \"\":", OTHER_PARTITION),
    Mutation("training/rank_state.py", "memory of another checkpoint is taken",
             "if said[\"token\"] != token:", "if said[\"token\"] == \"\":", LACKING),
    Mutation("training/durable.py", "a file that could not be written stays",
             "            temporary.unlink()\n", "            pass\n", RUN_FOLDER),
    Mutation("training/metrics.py", "the line of the checkpoint's own epoch is lost",
             "last < epoch <= place", "last < epoch < place", RUN_FOLDER),
    Mutation("training/metrics.py", "a line that was cut off counts", "split(b\"\\n\")[:-1]", "split(b\"\\n\")",
             RUN_FOLDER),
    Mutation("training/metrics.py", "infinity is written as such",
             "not math.isfinite(value)", "math.isnan(value)", RUN_FOLDER),
    Mutation("training/metrics.py", "a run that goes on looks complete",
             "self._remove(self.path / SUMMARY, ", "self._remove(", RUN_FOLDER),
    Mutation("training/metrics.py", "a run is replaced unasked",
             "if old and not overwrite and not (resume", "if old and overwrite and not (resume", RUN_FOLDER),
    Mutation("training/run_lock.py", "a sign of life is not seen",
             "if _state_of(file) != before:", "if _state_of(file) == ():", RUN_LOCK),
    Mutation("training/run_lock.py", "a run that lost its folder goes on writing",
             "if holder is not None and holder.token != self._mine.token:", "if holder is None:", RUN_LOCK),
    Mutation("training/run_lock.py", "a run removes the lock of its heir",
             "            if self._is_mine():\n                self.file.unlink()", "            self.file.unlink()",
             RUN_LOCK),
    Mutation("training/run_lock.py", "a live holder is taken for dead",
             "        if is_alive:\n", "        if is_alive is None:\n", RUN_LOCK),
    # What a program brings: losses, schedules, models, callbacks.
    Mutation("training/objective.py", "the mean of an own loss counts as one row",
             "return values * len(labels)", "return values", OWN_LOSS),
    Mutation("training/session.py", "ranks begin with weights of their own",
             "            take_from_rank_zero(self.comm, model)\n", "            pass\n", BEGIN),
    Mutation("training/checkpoint.py", "a schedule begins anew",
             "{name: state.get(name) for name in BROUGHT}", "{\"own_optimizer\": state.get(\"own_optimizer\")}", GO_ON),
    Mutation("training/own_optimizer.py", "an own optimizer forgets its moments",
             "{**whole, \"state\": state}", "whole", GO_ON),
    Mutation("training/schedule.py", "a schedule moves no rate",
             "self._optimizer.scale_rate(self.rate / self._first_rate)", "self._optimizer.scale_rate(1.0)", RATES),
    Mutation("training/trainer.py", "a callback must ask on all ranks",
             "any(answers), MPI.LOR", "any(answers), MPI.LAND", MOMENTS),
    Mutation("training/evaluate.py", "the largest error is the best", "sign = -1 if prefers_low else 1", "sign = 1",
             REGRESSION),
    Mutation("training/scores.py", "each rank has a spread of its own",
             "    comm.Allreduce(MPI.IN_PLACE, sums)\n    spread", "    spread", REGRESSION),
    Mutation("inference/row_pieces.py", "answers come in the order of ranks", "    out[places] = rows\n",
             "    out[:] = rows\n", PREDICTIONS),
    # Models of PyTorch Geometric.
    Mutation("pyg/batch_norm.py", "a batch is a rank's rows", "_SumOverRanks.apply(rows.sum(0), graph)",
             "(rows.sum(0) * (count / max(1, len(rows))))", CONVOLUTIONS),
    Mutation("pyg/batch_norm.py", "the gradient of a sum stays on its rank",
             "return ctx.graph.sum_over_ranks(gradient), None", "return gradient, None", CONVOLUTIONS),
    Mutation("pyg/edges.py", "halo rows have no degree", "factors = self.graph.share(factor[:, None])[:, 0]",
             "factors = torch.cat([factor, torch.ones(self.graph.num_rows - num_inner)])", CONVOLUTIONS),
    Mutation("pyg/edges.py", "draws belong to local rows",
             "ids = torch.from_numpy(self.graph.node_id).to(edge_index.device)",
             "ids = torch.arange(self.graph.num_rows)", DRAWS),
    # Preprocess: what is read in pieces, and what ranks share out.
    Mutation("datasets/row_files.py", "a gathered row is read from the place of another",
             "self._offset + number * size", "self._offset + place", PIECES_OF_ROWS),
    Mutation("datasets/row_files.py", "kept rows are counted without their last block",
             "num_rows, shape, dtype = num_rows + len(block), block.shape[1:], block.dtype",
             "num_rows, shape, dtype = max(num_rows, len(block)), block.shape[1:], block.dtype", PIECES_OF_ROWS),
    Mutation("datasets/feature_rows.py", "rows are divided by the first rows' sums",
             "values / self.divisor[rows]", "values / self.divisor[:len(values)]", TREATED),
    Mutation("datasets/features.py", "all rows are treated at once", "blocks = list(_row_blocks(*features.shape))",
             "blocks = [slice(0, features.shape[0])]", TREATED),
    Mutation("datasets/arcs.py", "an arc that two chunks hold is kept twice",
             "return keys if is_first.all() else keys[is_first]", "return keys", SORTED),
    Mutation("datasets/arcs.py", "a loop is an arc", "is_arc = u != v", "is_arc = u == u", SORTED),
    Mutation("datasets/arcs.py", "a bucket is read where the next one begins",
             "self._file.seek(starts[bucket])", "self._file.seek(starts[0])", SORTED),
    Mutation("datasets/arcs.py", "rows of one group go to several buckets",
             "self.bucket_of[row >> row.dtype.type(self.group_bits)]", "self.bucket_of[row % len(self.bucket_of)]",
             SORTED),
    Mutation("shards/writer.py", "halos of ranks come in the order of ranks",
             "found[part % crew.size][part // crew.size]", "sum(found, [])[part]", CREW_OF_TWO),
    Mutation("shards/sharing.py", "treatments of features stay on rank 0",
             "return replace(value, source=in_pieces(_take(place, value.source)))",
             "return in_pieces(_take(place, value.source))", CREW_OF_TWO),
    Mutation("shards/stages.py", "stages of another graph are taken", 'if file.attrs["key"] == self.key:',
             'if file.attrs["key"] != "":', STAGES),
    Mutation("shards/stages.py", "options have no say in what is taken", "sorted(options.items()))", "())", STAGES),
    Mutation("shards/stages.py", "the graph has no say in what is taken", "hash_graph(dataset), dataset", "dataset",
             STAGES),
    Mutation("datasets/arcs.py", "loops are missing from the progress", "task.advance(num_loops)", "task.advance(0)",
             PREPROCESS),
    # Plans.
    Mutation("planning/loads.py", "a row is sent in every layer",
             "np.minimum(hops[targets].astype(np.int64) + 1, num_hops + 1)",
             "np.ones(len(targets), np.int64)", PLANNED_LOADS),
    Mutation("planning/loads.py", "a row counts once an arc", "np.append(True, row[1:] != row[:-1])",
             "np.ones(len(row), bool)", PLANNED_LOADS),
    Mutation("planning/messages.py", "parameters are left out", "PARAMETER_BYTES.get(self.code_of(exchange), 0)", "0",
             PLANNED_BYTES),
    Mutation("planning/model.py", "the last layer reaches as far as the first",
             "size.num_layers - number)\n\n\ndef work_of",
             "size.num_layers)\n\n\ndef work_of", Tests("planning/test_bytes.py", 2)),
    Mutation("planning/simulation.py", "an interface carries all messages at once",
             "max(now, self._out_free[leaving], self._in_free[arriving])", "now", PLANNED_SECONDS),
    Mutation("planning/simulation.py", "nobody waits for a receiver",
             "        if earlier is None:\n            self._posted",
             "        if False:\n            self._posted", PLANNED_SECONDS),
    Mutation("planning/exchange_time.py", "rounds of a rank are all at once", "weights=longest, minlength=num_ranks)",
             "weights=longest / 9, minlength=num_ranks)", PLANNED_SECONDS),
    Mutation("planning/cluster.py", "rates may be negative",
             "not 0 < value < math.inf", "not -math.inf < value < math.inf",
             Tests("planning/test_cluster.py")),
    Mutation("planning/predictions.py", "what does not fit is recommended", "if one.fits]\n    if not fitting",
             "]\n    if not fitting", Tests("planning/test_predictions.py -k recommended")),
]
