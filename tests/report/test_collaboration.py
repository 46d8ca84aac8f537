"""Whom collaboration helped: whole numbers of right answers, and which Local run may be asked."""

from __future__ import annotations

import pytest

from fedmosaic_cli.report.collaboration import comparison_caveats, correct_counts, gains_over_local, local_run_mismatch


def test_clients_are_counted_by_right_answers():
    found = gains_over_local([0.9, 0.5, 0.75, 0.2], [0.8, 0.5, 1.0, 0.0], [10, 2, 4, 5])
    assert (found.helped, found.unharmed, found.hurt) == (2, 1, 1)
    assert found.gains == (0.1, 0.0, -0.25, 0.2)
    assert found.mean_gain == pytest.approx(0.0125)
    assert (found.largest_gain, found.largest_loss) == (0.2, 0.25)


def test_equal_counts_are_a_tie_whatever_the_last_bit_says():
    """The same three right answers out of ten, once divided and once added up: another number, but no gain."""
    added_up = 0.1 + 0.2
    assert added_up > 3 / 10
    found = gains_over_local([added_up, 3 / 10], [3 / 10, added_up], [10, 10])
    assert (found.helped, found.unharmed, found.hurt) == (0, 2, 0)
    assert found.gains == (0.0, 0.0)


def test_one_answer_among_very_many_counts():
    size = 10_000_000
    found = gains_over_local([(size - 1) / size], [(size - 2) / size], [size])
    assert (found.helped, found.unharmed, found.hurt) == (1, 0, 0)
    assert found.gains == (1 / size,)


def test_where_nobody_gains_the_largest_gain_is_0():
    found = gains_over_local([0.5, 0.5], [1.0, 0.75], [4, 4])
    assert (found.largest_gain, found.largest_loss) == (0.0, 0.5)
    found = gains_over_local([1.0, 0.75], [0.5, 0.75], [4, 4])
    assert (found.largest_gain, found.largest_loss) == (0.5, 0.0)


def test_gains_stand_with_the_clients():
    assert set(gains_over_local([1.0], [0.0], [1]).to_dict()) == {
        "helped",
        "unharmed",
        "hurt",
        "mean_gain",
        "largest_gain",
        "largest_loss",
    }


@pytest.mark.parametrize(
    ("accuracies", "local", "sizes"),
    [
        ([0.5], [0.25], [2]),
        ([0.5], [1.5], [2]),
        ([0.5], [-0.5], [2]),
        ([0.5], [float("nan")], [2]),
        ([0.5, 0.5], [0.5], [2, 2]),
        ([0.5], [0.5, 0.5], [2]),
        ([], [], []),
    ],
)
def test_what_is_no_accuracy_on_so_many_examples_is_refused(accuracies, local, sizes):
    with pytest.raises(ValueError, match=r".+"):
        gains_over_local(accuracies, local, sizes)


def test_every_count_survives_the_division():
    for size in (1, 3, 7, 49, 1000):
        counts = list(range(size + 1))
        assert correct_counts([count / size for count in counts], [size] * len(counts)) == counts


SUMMARY = {
    "method": "fedct",
    "seed": 0,
    "rounds": 7,
    "shards": {"digest": "ab"},
    "model": {"name": "mlp"},
    "train": {"lr": 0.1},
    "clients": {},
}
LOCAL = {**SUMMARY, "method": "local"}


def test_a_run_that_differs_in_the_method_alone_fits():
    assert local_run_mismatch(SUMMARY, LOCAL) is None
    without = {key: value for key, value in LOCAL.items() if key != "clients"}
    assert local_run_mismatch(SUMMARY, without) is None, "nothing said about clients is nothing special about them"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "centralized"}, "'centralized'"),
        ({"shards": {"digest": "cd"}}, "other shards"),
        ({"shards": {}}, "other shards"),
        ({"seed": 1}, "seed 1, not 0"),
        ({"rounds": 30}, "rounds 30, not 7"),
        ({"model": {"name": "cnn"}}, "model.name cnn, not mlp"),
        ({"train": {"lr": 0.2}}, "train.lr 0.2, not 0.1"),
        ({"train": {"lr": 0.1, "momentum": 0.9}}, "train.momentum 0.9, not None"),
        ({"clients": {"0-4": {"lr": 1.0}}}, "clients.0-4"),
    ],
)
def test_a_run_that_differs_in_anything_else_does_not(change, words):
    assert words in local_run_mismatch(SUMMARY, {**LOCAL, **change})


def test_what_is_odd_about_either_run_is_told():
    assert comparison_caveats({**SUMMARY, "nonidentical": [], "left_out": {}}, LOCAL) == []
    found = comparison_caveats(
        {**SUMMARY, "left_out": {"3": 2}}, {**LOCAL, "nonidentical": ["after round 3: train.lr"]}
    )
    assert found == [
        "the run left clients that diverged out of rounds",
        "the Local run went on under other conditions than it began",
    ]
