"""Paired tests and ranks, comparisons_by_method with exact counts and published values."""

from __future__ import annotations

import csv
from itertools import product

import pandas as pd
import pytest

from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.statistics import (
    client_gains,
    compare_methods_with_local,
    holm_correction,
    rank_methods,
    wilcoxon_signed_rank,
)
from fedmosaic_cli.report.stats_tables import (
    build_statistics_tables,
    statistics_to_csv,
    statistics_to_json,
    text_table_to_latex,
    text_table_to_markdown,
)


def groups_of(runs):
    return comparison_groups(collect_runs(runs.folder)[0])


def comparisons_by_method(runs):
    return {line.method: line for setting in groups_of(runs) for line in compare_methods_with_local(setting)}


def exact_p(gains):
    """Return Wilcoxon's p-value by enumerating all 2^n signs."""
    ranks = {abs(gain): number for number, gain in enumerate(sorted(gains, key=abs), start=1)}
    own = sum(ranks[abs(gain)] for gain in gains if gain > 0)
    sums = [
        sum(r for r, up in zip(ranks.values(), signs, strict=True) if up)
        for signs in product((0, 1), repeat=len(gains))
    ]
    tail = min(sum(s <= own for s in sums), sum(s >= own for s in sums)) / len(sums)
    return min(1.0, 2 * tail)


@pytest.mark.parametrize(
    "gains",
    [
        [0.01, 0.02, 0.03, 0.04, 0.05, 0.06],
        [-0.01, 0.02, 0.03, 0.04, 0.05, -0.06, 0.07],
        [-0.01, 0.02, -0.03, 0.04, -0.05, 0.06, -0.07, 0.08],
    ],
)
def test_the_p_value_is_exact(gains):
    assert wilcoxon_signed_rank(gains)[1] == pytest.approx(exact_p(gains))


def test_the_p_value_is_exact_with_ties():
    # Ranks 2, 2, 2, 4.5, 4.5, 6; the loss has one of the 2s. Of all 64 signs, 4 have a sum of at most 2 (none, or one
    # of the three smallest ranks), and 4 more are at the other end.
    assert wilcoxon_signed_rank([-0.1, 0.1, 0.1, 0.2, 0.2, 0.3])[1] == pytest.approx(2 * 4 / 64)


def test_the_effect_is_the_rank_biserial_correlation():
    # Ranks 1 to 4: the gains have 2 + 3 + 4, the loss has 1.
    assert wilcoxon_signed_rank([-0.1, 0.2, 0.3, 0.4])[0] == pytest.approx((9 - 1) / 10)
    assert wilcoxon_signed_rank([0.1] * 7)[0] == 1
    assert wilcoxon_signed_rank([0.0, -0.1])[0] == -1


def test_clients_without_a_difference_are_ignored():
    assert wilcoxon_signed_rank([0.0] * 50) == (None, None)
    assert wilcoxon_signed_rank([0.0] * 50 + [0.1] * 5) == (1.0, None)
    assert wilcoxon_signed_rank([0.0] * 50 + [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])[1] == pytest.approx(2 / 2**6)


def test_holm_correction():
    assert holm_correction({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm_correction({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_clients_are_compared_on_the_same_shards_and_seed(runs):
    for seed in (0, 1):
        runs("s", "local", seed, [0.5, 0.5, 0.5 + seed / 10])
        runs("s", "fedavg", seed, [0.6, 0.5, 0.5])
    line = comparisons_by_method(runs)["FedAvg"]
    # In seed 1 client 2 is hurt; means over seeds would hide it.
    assert (line.helped, line.unharmed, line.hurt) == (2, 3, 1)
    assert line.mean_gain == pytest.approx((0.1 + 0.1 - 0.1) / 6)
    assert line.median_gain == 0
    assert line.p_value is None


def test_clients_of_other_shards_are_not_compared():
    """Client 0 of one partition has other data than client 0 of another one."""
    ours = pd.DataFrame({"seed": [0, 1], "digest": ["a", "b"], "per_client": [[0.7, 0.5], [0.9, 0.9]]})
    local = pd.DataFrame({"seed": [0, 1], "digest": ["a", "c"], "per_client": [[0.5, 0.6], [0.1, 0.1]]})
    assert client_gains(ours, local) == pytest.approx({("a", 0): 0.2, ("a", 1): -0.1})


def test_a_client_counts_once_if_seeds_share_shards(runs):
    for seed, accuracy in enumerate([0.4, 0.8, 0.6]):
        runs("s", "local", seed, [0.5, 0.5], digest="f" * 64)
        runs("s", "fedavg", seed, [accuracy, 0.5], digest="f" * 64)
    line = comparisons_by_method(runs)["FedAvg"]
    assert (line.helped, line.unharmed, line.hurt) == (1, 1, 0)
    assert line.mean_gain == pytest.approx((0.1 + 0.0) / 2)


def test_there_is_no_comparison_without_local(runs):
    runs("s", "fedavg", 0, [0.6, 0.5])
    assert comparisons_by_method(runs) == {}
    assert build_statistics_tables([], None) == []


def test_the_critical_difference_matches_demsar_s_example(runs):
    """Four methods on 14 data sets: a critical difference of 1.25 (JMLR 7, 2006)."""
    for number in range(14):
        for order, variant in enumerate(["local", "fedavg", "fedct", "ditto"]):
            runs(f"s{number}", variant, 0, 0.9 - order / 10)
    ranking = rank_methods(groups_of(runs))
    assert ranking.critical_difference == pytest.approx(1.25, abs=0.005)
    assert ranking.ranks == {"Local training": 1.0, "FedAvg": 2.0, "FedCT": 3.0, "Ditto": 4.0}
    # Friedman's statistic is largest when all agree: N (k - 1) = 42.
    assert ranking.p_value < 1e-8


def test_ties_share_a_rank_and_centralized_is_not_ranked(runs):
    for setting, fedavg in (("a", 0.5), ("b", 0.9)):
        for variant, value in {"local": 0.5, "fedavg": fedavg, "ditto": 0.4, "centralized": 0.99}.items():
            runs(setting, variant, 0, value)
    assert rank_methods(groups_of(runs)).ranks == {"Local training": 1.75, "FedAvg": 1.25, "Ditto": 3.0}


def test_only_methods_in_every_group_are_ranked_and_there_must_be_three(runs):
    for variant in ("local", "fedavg", "ditto"):
        runs("a", variant, 0, 0.5)
    assert rank_methods(groups_of(runs)) is None
    for variant in ("local", "fedavg"):
        runs("b", variant, 0, 0.5)
    assert rank_methods(groups_of(runs)) is None
    runs("b", "ditto", 0, 0.5)
    assert rank_methods(groups_of(runs)).p_value == 1.0


def test_all_formats_contain_the_same_numbers(runs):
    for setting in ("a", "b"):
        runs(setting, "local", 0, [0.5] * 8)
        runs(setting, "fedavg", 0, [0.5, 0.6, 0.7, 0.8, 0.9, 0.92, 0.94, 0.44])
        runs(setting, "ditto", 0, [0.5] * 7 + [0.4])
    comparisons = [line for setting in groups_of(runs) for line in compare_methods_with_local(setting)]
    ranking = rank_methods(groups_of(runs))
    first, second, ranks = build_statistics_tables(comparisons, ranking)
    assert first.rows[0] == ("FedAvg", "6", "1", "1", "+22.50", "+25.00", "+0.93", "0.031")
    assert first.rows[1] == ("Ditto", "0", "7", "1", "-1.25", "+0.00", "-1.00", "-")
    assert ranks.rows[0] == ("FedAvg", "1.00")
    assert "| FedAvg | 6 | 1 | 1 | +22.50 | +25.00 | +0.93 | 0.031 |" in text_table_to_markdown(first)
    assert "    FedAvg & 6 & 1 & 1 & +22.50 & +25.00 & +0.93 & 0.031 \\\\" in text_table_to_latex(first)
    assert "    Ditto & 0 & 7 & 1 & $-1.25$ & +0.00 & $-1.00$ & -- \\\\" in text_table_to_latex(first)
    assert [bool(table.note) for table in (first, second, ranks)] == [True, False, True]
    assert "each client once per seed" in first.note
    entries = statistics_to_json(comparisons, ranking)
    assert entries["comparisons"][0]["helped"] == 6
    assert entries["ranking"]["ranks"] == {"FedAvg": 1.0, "Local training": 2.0, "Ditto": 3.0}
    lines = list(csv.DictReader(statistics_to_csv(comparisons, ranking).splitlines()))
    assert [(line["setting"], line["method"], line["helped"], line["average_rank"]) for line in lines] == [
        ("a", "FedAvg", "6", ""),
        ("a", "Ditto", "0", ""),
        ("b", "FedAvg", "6", ""),
        ("b", "Ditto", "0", ""),
        ("", "Local training", "", "2.0"),
        ("", "FedAvg", "", "1.0"),
        ("", "Ditto", "", "3.0"),
    ]


def test_groups_without_enough_methods_are_not_ranked(runs):
    for setting in ("a", "b"):
        for variant, value in {"local": 0.5, "fedavg": 0.6, "ditto": 0.7, "fedct": 0.8}.items():
            runs(setting, variant, 0, value)
    runs("c", "local", 0, 0.9)
    runs("c", "fedavg", 0, 0.8)
    ranking = rank_methods(groups_of(runs))
    assert ranking.settings == ("a", "b")
    assert list(ranking.ranks) == ["Local training", "FedAvg", "FedCT", "Ditto"]


def test_of_groups_that_differ_only_in_the_public_set_one_counts(runs):
    for setting, alpha, size in (("a", 1.0, 10), ("a-20", 1.0, 20), ("a-30", 1.0, 30), ("b", 0.1, 10)):
        for variant, value in {"local": 0.5, "fedavg": 0.6, "ditto": 0.7}.items():
            runs(setting, variant, 0, value, parameters={"alpha": alpha, "public_size": size})
    runs("a-20", "fedct", 0, 0.7, parameters={"alpha": 1.0, "public_size": 20})
    runs("b", "fedavg", 0, 0.9, parameters={"alpha": 0.1, "public_size": 10}, rounds=99, place="other")
    assert rank_methods(groups_of(runs)).settings == ("a-20", "b [rounds=30]")


def test_ranks_use_the_seeds_that_all_methods_have(runs):
    for setting in ("a", "b"):
        for seed, value in enumerate([0.9, 0.5]):
            runs(setting, "local", seed, value)
            runs(setting, "fedavg", seed, value + 0.01)
        # The worst method on its only seed, but with a higher mean than the others.
        runs(setting, "ditto", 0, 0.85)
    assert rank_methods(groups_of(runs)).ranks == {"Local training": 2.0, "FedAvg": 1.0, "Ditto": 3.0}
