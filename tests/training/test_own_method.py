"""A method of one's own is found by its import path, has settings of its own, and trains like any other."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields

import pytest
from mpi4py import MPI
from training_setup import train, without_seconds

from hpcgnn.config import TrainConfig, check_keys, settings_of
from hpcgnn.errors import ConfigError
from hpcgnn.exchange.kinds import Fresh, Kept, Sampled, Skipped
from hpcgnn.methods import METHODS, find_method, name_of
from hpcgnn.methods.method import Method
from hpcgnn.methods.policies import FixedWidths
from hpcgnn.settings import Clash, setting

COMM = MPI.COMM_WORLD


@dataclass(frozen=True)
class TwoBits(Method):
    """Send all rows at few bits."""

    name = "two-bits"
    clashes = (Clash("predict", "previous", "it is a test; use none"),)
    few_bits: int = setting(2, "Bits per value.", (1, 2, 4))

    def width_policy(self, context):
        """One width."""
        return FixedWidths(self.few_bits)


@pytest.fixture
def path(monkeypatch):
    """The import path of TwoBits, by which it can be imported in this process."""
    monkeypatch.setitem(sys.modules, "own_method_of_a_test", sys.modules[__name__])
    monkeypatch.setattr(TwoBits, "__module__", "own_method_of_a_test")
    return "own_method_of_a_test:TwoBits"


@pytest.mark.parallel([1, 2])
def test_a_method_of_ones_own_trains_as_the_built_in_one_of_the_same_widths(shared_path, shards, path):
    _, expected, _ = train(COMM, shards, shared_path / "uniform", method="uniform", bits=4, sum_bits=32)
    summary, found, _ = train(COMM, shards, shared_path / "own", method=path, few_bits=4)
    assert without_seconds(found) == without_seconds(expected)
    assert summary["method"] == path


class WideAtLast(FixedWidths):
    """A policy of a user: more bits in the last tenth of the epochs."""

    def __init__(self, few, more, num_epochs):
        super().__init__(few)
        self.at_last, self.first_of_last = FixedWidths(more), num_epochs - num_epochs // 10

    def bit_plan(self, seed, epoch, base):
        """Few bits, or more."""
        policy = self.at_last if epoch >= self.first_of_last else super()
        return policy.bit_plan(seed, epoch, base)


@dataclass(frozen=True)
class AtLast(TwoBits):
    """Few bits, and 32 in the last tenth of the epochs."""

    name = "at-last"
    takes_steps = True

    def width_policy(self, context):
        """By the epochs of the run, which a rule of steps may not contradict."""
        assert context.steps.num_epochs == context.num_epochs
        return WideAtLast(self.few_bits, 32, context.num_epochs)


@pytest.mark.parallel(2)
@pytest.mark.parametrize("steps", ["1", "rows:2"])
def test_a_method_knows_the_number_of_epochs_of_the_run(shared_path, shards, path, monkeypatch, steps):
    monkeypatch.setattr(AtLast, "__module__", path.partition(":")[0])
    _, metrics, _ = train(COMM, shards, shared_path / "run", method=path.replace("TwoBits", "AtLast"), epochs=10,
                          steps=steps)
    sent = [record["sent_bytes_payload"] for record in metrics]
    assert 2 * max(sent[:9]) < min(sent[9:])


@pytest.mark.parametrize("method, settings, expected", [
    ("pipegcn", {"smoothing": 0.25}, Kept(smoothing=0.25)), ("sylvie", {}, Kept()),
    ("bns", {"share": 0.25}, Sampled(0.25)), ("bns", {"share": 1.0}, Fresh()),
    ("sancus", {"staleness": 7, "skip_change": 0.25}, Skipped(0.25, 7)), ("adaqp", {}, Fresh())])
def test_settings_of_a_method_reach_its_exchanges(method, settings, expected):
    found = METHODS[method](**settings).exchange()
    assert (type(found), vars(found)) == (type(expected), vars(expected))


def test_its_settings_come_back_from_a_file(path):
    config = TrainConfig.of(method=path, few_bits=1)
    settings = settings_of(config)
    assert (settings["method"], settings["few_bits"]) == (path, 1)
    assert TrainConfig.of(**check_keys(settings, "run.toml")) == config


def test_its_clashes_and_limits_are_checked(path):
    with pytest.raises(ConfigError) as refused:
        TrainConfig.of(method=path, predict="previous")
    assert str(refused.value) == "method two-bits can't be used with predict previous: it is a test; use none"
    with pytest.raises(ConfigError) as refused:
        TrainConfig.of(method=path, few_bits=8)
    assert str(refused.value) == "few_bits must be one of 1, 2, 4, found 8"


@pytest.mark.parametrize("name, complaint", [
    ("sylvester", f"method must be one of {', '.join(METHODS)}, or MODULE:CLASS, found 'sylvester'"),
    ("no_such_module:Method", "method no_such_module:Method can't be imported: No module named 'no_such_module'"),
    ("hpcgnn.errors:ConfigError", "method hpcgnn.errors:ConfigError is no subclass of hpcgnn.methods.method.Method"),
    ("hpcgnn.methods.method:Method", "method hpcgnn.methods.method:Method has no name of its own, so it can't be used"),
])
def test_what_is_no_method_is_refused(name, complaint):
    with pytest.raises(ConfigError) as refused:
        find_method(name)
    assert str(refused.value) == complaint


def test_every_method_is_found_and_described_and_leaves_no_setting_untaken():
    for name, method in METHODS.items():
        assert find_method(name) is method and name_of(method()) == name
        assert method.__doc__.split(". ")[0].count(" ") > 3
        for own in fields(method):
            assert own.metadata["description"].endswith("."), own.name
    settings = {own.name: own.default for method in METHODS.values() for own in fields(method)}
    assert TrainConfig.of(**settings) == TrainConfig()      # untouched settings of other methods are no error


def test_a_setting_of_several_methods_means_the_same_in_all():
    declared = {}
    for method in METHODS.values():
        for own in fields(method):
            first = declared.setdefault(own.name, own)
            assert (own.default, own.metadata) == (first.default, first.metadata), own.name


PLAIN = """
from dataclasses import dataclass

from hpcgnn.methods.policies import FixedWidths
from hpcgnn.methods.method import Method
from hpcgnn.settings import setting


@dataclass(frozen=True)
class Plain(Method):
    name = "plain"
    few_bits: int = setting(2, "Bits per value.", (1, 2, 4))
    is_loud: bool = setting(False, "Say more.")

    def width_policy(self, context):
        return FixedWidths(self.few_bits)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """own_module(text) -> the name of a module with this text, in the current folder."""
    def write(text):
        (tmp_path / "module_of_a_user.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "module_of_a_user", raising=False)
        return "module_of_a_user"

    yield write
    sys.modules.pop("module_of_a_user", None)


def test_a_module_may_read_its_annotations_as_classes(own_module):
    """Without `from __future__ import annotations`, the type of a setting is no text."""
    path = f"{own_module(PLAIN)}:Plain"
    assert TrainConfig.of(method=path, few_bits=4, is_loud=True).method.few_bits == 4
    with pytest.raises(ConfigError, match=r"^few_bits must be of type int, found 'a'$"):
        TrainConfig.of(method=path, few_bits="a")


def test_a_setting_of_another_type_is_refused_by_name(own_module):
    path = f"{own_module(PLAIN.replace('few_bits: int', 'few_bits: tuple'))}:Plain"
    with pytest.raises(ConfigError, match=r"^setting few_bits is declared as tuple; a setting is one of int, float, "):
        TrainConfig.of(method=path)


def test_a_module_that_can_not_be_imported_is_not_called_a_bug_of_hpcgnn(own_module):
    module = own_module("class Mine(Fresh): pass")
    with pytest.raises(ConfigError, match=f"^method {module}:Mine can't be imported: NameError: name 'Fresh' is not"):
        TrainConfig.of(method=f"{module}:Mine")
