"""Gains over Local, counted in correct predictions, and the choice of the matching Local run."""

from __future__ import annotations

import pytest

from fedmosaic_cli.report.collaboration import comparison_caveats, correct_counts, gains_over_local, local_run_mismatch


def test_clients_are_compared_by_correct_predictions():
    gains = gains_over_local([0.9, 0.5, 0.75, 0.2], [0.8, 0.5, 1.0, 0.0], [10, 2, 4, 5])
    assert (gains.helped, gains.unharmed, gains.hurt) == (2, 1, 1)
    assert gains.gains == (0.1, 0.0, -0.25, 0.2)
    assert gains.mean_gain == pytest.approx(0.0125)
    assert (gains.largest_gain, gains.largest_loss) == (0.2, 0.25)


def test_equal_counts_are_a_tie_despite_rounding():
    """Three of ten correct, once divided and once summed, are different floats but no gain."""
    summed = 0.1 + 0.2
    assert summed > 3 / 10
    gains = gains_over_local([summed, 3 / 10], [3 / 10, summed], [10, 10])
    assert (gains.helped, gains.unharmed, gains.hurt) == (0, 2, 0)
    assert gains.gains == (0.0, 0.0)


def test_one_prediction_in_ten_million_counts():
    size = 10_000_000
    gains = gains_over_local([(size - 1) / size], [(size - 2) / size], [size])
    assert (gains.helped, gains.unharmed, gains.hurt) == (1, 0, 0)
    assert gains.gains == (1 / size,)


def test_the_largest_gain_is_0_if_no_client_gains():
    gains = gains_over_local([0.5, 0.5], [1.0, 0.75], [4, 4])
    assert (gains.largest_gain, gains.largest_loss) == (0.0, 0.5)
    gains = gains_over_local([1.0, 0.75], [0.5, 0.75], [4, 4])
    assert (gains.largest_gain, gains.largest_loss) == (0.5, 0.0)


def test_the_dictionary_omits_the_gains():
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
def test_values_that_are_not_accuracies_are_refused(accuracies, local, sizes):
    with pytest.raises(ValueError, match=r".+"):
        gains_over_local(accuracies, local, sizes)


def test_counts_are_recovered_from_accuracies():
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


def test_a_local_run_that_differs_only_in_the_method_matches():
    assert local_run_mismatch(SUMMARY, LOCAL) is None
    without = {key: value for key, value in LOCAL.items() if key != "clients"}
    assert local_run_mismatch(SUMMARY, without) is None, "a missing section equals an empty one"


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
def test_a_local_run_with_any_other_difference_does_not_match(change, words):
    assert words in local_run_mismatch(SUMMARY, {**LOCAL, **change})


def test_caveats_of_both_runs_are_listed():
    assert comparison_caveats({**SUMMARY, "nonidentical": [], "left_out": {}}, LOCAL) == []
    gains = comparison_caveats(
        {**SUMMARY, "left_out": {"3": 2}}, {**LOCAL, "nonidentical": ["after round 3: train.lr"]}
    )
    assert gains == [
        "the run left clients that diverged out of rounds",
        "the Local run went on under other conditions than it began",
    ]
