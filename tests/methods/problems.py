"""Problems for the solvers' tests, the best answer by trying all, and threads that solve one together."""

from __future__ import annotations

import itertools
import threading

import numpy as np

from hpcgnn.methods.bisection import solve_together
from hpcgnn.methods.problem import Problem, pair_round


def make_problem(groups_of_pair, num_ranks=3, seed=0, widths=(2, 4, 8), theta=None, beta=None):
    """`groups_of_pair` maps a pair's index to its number of groups; betas are lognormal, links differ by 20 %."""
    rng = np.random.default_rng(seed)
    group_pair = np.repeat(list(groups_of_pair), list(groups_of_pair.values())).astype(np.int64)
    num_groups, num_pairs = len(group_pair), num_ranks ** 2
    return Problem(
        group_pair, rng.lognormal(0, 2, num_groups) if beta is None else np.asarray(beta, float),
        rng.integers(1, 500, num_groups) * 16, pair_round(num_ranks),
        1e-9 * rng.lognormal(0, 0.2, num_pairs) if theta is None else np.asarray(theta, float),
        np.full(num_pairs, 1e-6), widths)


def many_groups(groups=40, num_ranks=4, **options):
    """Every pair has about so many groups."""
    rng = np.random.default_rng(7)
    pairs = {pair: int(rng.integers(groups // 2, 2 * groups)) for pair in range(num_ranks ** 2)
             if pair % (num_ranks + 1)}
    return make_problem(pairs, num_ranks, **options)


def by_hand(problem, choice, lam):
    """The objective, written out as the paper has it."""
    def terms(choice):
        variance = sum(problem.beta[g] / (2 ** problem.widths[k] - 1) ** 2 for g, k in enumerate(choice))
        longest = {}
        for pair in set(problem.group_pair.tolist()):
            bits = sum(problem.num_values[g] * problem.widths[k] for g, k in enumerate(choice)
                       if problem.group_pair[g] == pair)
            number = problem.pair_round[pair]
            longest[number] = max(longest.get(number, 0), problem.theta[pair] * bits / 8 + problem.gamma[pair])
        return variance, sum(longest.values())

    num_groups, largest = len(problem.group_pair), len(problem.widths) - 1
    (variance, seconds), fine, coarse = terms(choice), terms([largest] * num_groups), terms([0] * num_groups)
    first = (variance - fine[0]) / (coarse[0] - fine[0]) if coarse[0] > fine[0] else 0
    second = (seconds - coarse[1]) / (fine[1] - coarse[1]) if fine[1] > coarse[1] else 0
    return lam * first + (1 - lam) * second


def best_of_all(problem, lam):
    """The least objective over all assignments."""
    choices = np.array(list(itertools.product(range(len(problem.widths)), repeat=len(problem.group_pair))))
    bits = np.array(problem.widths)[choices]
    variance = (problem.beta / (2.0 ** bits - 1) ** 2).sum(1)
    longest = np.zeros((problem.pair_round.max() + 1, len(choices)))
    for pair in set(problem.group_pair.tolist()):
        mine = problem.group_pair == pair
        spent = problem.theta[pair] * (bits * problem.num_values)[:, mine].sum(1) / 8 + problem.gamma[pair]
        longest[problem.pair_round[pair]] = np.maximum(longest[problem.pair_round[pair]], spent)
    seconds = longest.sum(0)
    first = (variance - variance.min()) / np.ptp(variance) if np.ptp(variance) > 0 else 0 * variance
    second = (seconds - seconds.min()) / np.ptp(seconds) if np.ptp(seconds) > 0 else 0 * seconds
    objective = lam * first + (1 - lam) * second
    best = int(objective.argmin())
    assert abs(objective[best] - by_hand(problem, choices[best], lam)) < 1e-9
    return objective[best]


def choice_of(problem, assignment):
    return [problem.widths.index(width) for width in assignment.widths]


class Meeting:
    """Reductions between threads, which stand for ranks."""

    def __init__(self, num_ranks):
        self._barrier, self._told = threading.Barrier(num_ranks, timeout=20), [None] * num_ranks
        self.num_calls, self.num_values = [0] * num_ranks, [0] * num_ranks

    def of(self, rank):
        meeting = self

        class Member:
            def sum(self, values):
                return meeting.everyone(rank, values).sum(axis=0)

            def max(self, values):
                return meeting.everyone(rank, values).max(axis=0)

            def before(self, values):
                return meeting.everyone(rank, values)[:rank].sum(axis=0)

        return Member()

    def everyone(self, rank, values):
        self._told[rank] = np.asarray(values, np.float64)
        self.num_calls[rank] += 1
        self.num_values[rank] += values.size
        self._barrier.wait()
        found = np.array(self._told)
        self._barrier.wait()
        return found


def alone(problem, lam):
    return solve_together(problem, lam, np.ones(problem.num_rounds), Meeting(1).of(0))
