"""Paired tests and ranks, against what can be counted by hand or is printed in the literature."""

from __future__ import annotations

import csv
from itertools import product

import pytest

from fedmosaic_cli.report.collect import collect_runs
from fedmosaic_cli.report.comparison import comparison_groups
from fedmosaic_cli.report.statistics import (
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


def settings(runs):
    return comparison_groups(collect_runs(runs.folder)[0])


def compared(runs):
    return {line.method: line for setting in settings(runs) for line in compare_methods_with_local(setting)}


def exact_p(gains):
    """Wilcoxon's p-value by counting all 2^n signs."""
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
def test_the_p_value_is_that_of_all_signs_counted(gains):
    assert wilcoxon_signed_rank(gains)[1] == pytest.approx(exact_p(gains))


def test_gains_of_equal_size_are_counted_exactly_too():
    # Ranks 2, 2, 2, 4.5, 4.5, 6, the loss having one of the 2s: among all 64 signs, sums of at most 2 come from none
    # (0) or one of the three smallest (2, 2, 2), and as many from the other end.
    assert wilcoxon_signed_rank([-0.1, 0.1, 0.1, 0.2, 0.2, 0.3])[1] == pytest.approx(2 * 4 / 64)


def test_the_effect_is_the_share_of_favourable_ranks_minus_that_of_the_others():
    # Ranks 1 to 4; those of gains are 2 + 3 + 4, that of the loss is 1.
    assert wilcoxon_signed_rank([-0.1, 0.2, 0.3, 0.4])[0] == pytest.approx((9 - 1) / 10)
    assert wilcoxon_signed_rank([0.1] * 7)[0] == 1
    assert wilcoxon_signed_rank([0.0, -0.1])[0] == -1


def test_clients_that_do_not_differ_are_no_evidence():
    assert wilcoxon_signed_rank([0.0] * 50) == (None, None)
    assert wilcoxon_signed_rank([0.0] * 50 + [0.1] * 5) == (1.0, None)
    assert wilcoxon_signed_rank([0.0] * 50 + [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])[1] == pytest.approx(2 / 2**6)


def test_holm():
    assert holm_correction({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm_correction({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_clients_are_compared_on_their_own_shards_and_seed(runs):
    for seed in (0, 1):
        runs("s", "local", seed, [0.5, 0.5, 0.5 + seed / 10])
        runs("s", "fedavg", seed, [0.6, 0.5, 0.5])
    line = compared(runs)["FedAvg"]
    # In seed 1 client 2 is hurt; a comparison of means over seeds would not see it.
    assert (line.helped, line.unharmed, line.hurt) == (2, 3, 1)
    assert line.mean_gain == pytest.approx((0.1 + 0.1 - 0.1) / 6)
    assert line.median_gain == 0
    assert line.p_value is None


def test_where_seeds_share_shards_a_client_counts_once(runs):
    for seed, mark in enumerate([0.4, 0.8, 0.6]):
        runs("s", "local", seed, [0.5, 0.5], digest="f" * 64)
        runs("s", "fedavg", seed, [mark, 0.5], digest="f" * 64)
    line = compared(runs)["FedAvg"]
    assert (line.helped, line.unharmed, line.hurt) == (1, 1, 0)
    assert line.mean_gain == pytest.approx((0.1 + 0.0) / 2)


def test_without_local_there_is_nothing_to_compare_with(runs):
    runs("s", "fedavg", 0, [0.6, 0.5])
    assert compared(runs) == {}
    assert build_statistics_tables([], None) == []


def test_the_critical_difference_of_demsar_s_example(runs):
    """Four methods on 14 data sets: a critical difference of 1.25 (JMLR 7, 2006)."""
    for number in range(14):
        for order, variant in enumerate(["local", "fedavg", "fedct", "ditto"]):
            runs(f"s{number}", variant, 0, 0.9 - order / 10)
    ranking = rank_methods(settings(runs))
    assert ranking.critical_difference == pytest.approx(1.25, abs=0.005)
    assert ranking.ranks == {"Local training": 1.0, "FedAvg": 2.0, "FedCT": 3.0, "Ditto": 4.0}
    # Friedman's statistic is largest when all agree: N (k - 1) = 42.
    assert ranking.p_value < 1e-8


def test_ties_share_a_rank_and_centralized_is_not_ranked(runs):
    for setting, fedavg in (("a", 0.5), ("b", 0.9)):
        for variant, value in {"local": 0.5, "fedavg": fedavg, "ditto": 0.4, "centralized": 0.99}.items():
            runs(setting, variant, 0, value)
    assert rank_methods(settings(runs)).ranks == {"Local training": 1.75, "FedAvg": 1.25, "Ditto": 3.0}


def test_only_methods_of_every_setting_are_ranked_and_too_few_are_not(runs):
    for variant in ("local", "fedavg", "ditto"):
        runs("a", variant, 0, 0.5)
    assert rank_methods(settings(runs)) is None
    for variant in ("local", "fedavg"):
        runs("b", variant, 0, 0.5)
    assert rank_methods(settings(runs)) is None
    runs("b", "ditto", 0, 0.5)
    assert rank_methods(settings(runs)).p_value == 1.0


def test_the_sheets_hold_the_same_numbers(runs):
    for setting in ("a", "b"):
        runs(setting, "local", 0, [0.5] * 8)
        runs(setting, "fedavg", 0, [0.5, 0.6, 0.7, 0.8, 0.9, 0.92, 0.94, 0.44])
        runs(setting, "ditto", 0, [0.5] * 7 + [0.4])
    comparisons = [line for setting in settings(runs) for line in compare_methods_with_local(setting)]
    ranking = rank_methods(settings(runs))
    first, second, ranks = build_statistics_tables(comparisons, ranking)
    assert first.rows[0] == ("FedAvg", "6", "1", "1", "+22.50", "+25.00", "+0.93", "0.031")
    assert first.rows[1] == ("Ditto", "0", "7", "1", "-1.25", "+0.00", "-1.00", "-")
    assert ranks.rows[0] == ("FedAvg", "1.00")
    assert "| FedAvg | 6 | 1 | 1 | +22.50 | +25.00 | +0.93 | 0.031 |" in text_table_to_markdown(first)
    assert "    FedAvg & 6 & 1 & 1 & +22.50 & +25.00 & +0.93 & 0.031 \\\\" in text_table_to_latex(first)
    assert "    Ditto & 0 & 7 & 1 & $-$1.25 & +0.00 & $-$1.00 & - \\\\" in text_table_to_latex(first)
    assert [bool(sheet.note) for sheet in (first, second, ranks)] == [False, True, True]
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


def test_settings_that_lack_methods_do_not_keep_the_others_from_being_ranked(runs):
    for setting in ("a", "b"):
        for variant, value in {"local": 0.5, "fedavg": 0.6, "ditto": 0.7, "fedct": 0.8}.items():
            runs(setting, variant, 0, value)
    runs("c", "local", 0, 0.9)
    runs("c", "fedavg", 0, 0.8)
    ranking = rank_methods(settings(runs))
    assert ranking.settings == ("a", "b")
    assert list(ranking.ranks) == ["Local training", "FedAvg", "FedCT", "Ditto"]


def test_settings_that_differ_in_the_public_set_alone_are_no_more_evidence(runs):
    for setting, alpha, size in (("a", 1.0, 10), ("a-20", 1.0, 20), ("a-30", 1.0, 30), ("b", 0.1, 10)):
        for variant, value in {"local": 0.5, "fedavg": 0.6, "ditto": 0.7}.items():
            runs(setting, variant, 0, value, parameters={"alpha": alpha, "public_size": size})
    runs("a-20", "fedct", 0, 0.7, parameters={"alpha": 1.0, "public_size": 20})
    runs("b", "fedavg", 0, 0.9, parameters={"alpha": 0.1, "public_size": 10}, rounds=99, place="other")
    assert rank_methods(settings(runs)).settings == ("a-20", "b [rounds=30]")


def test_ranks_are_over_seeds_that_all_have(runs):
    for setting in ("a", "b"):
        for seed, value in enumerate([0.9, 0.5]):
            runs(setting, "local", seed, value)
            runs(setting, "fedavg", seed, value + 0.01)
        # The worst of all with the one seed that it was run with, and of a higher mean than the others.
        runs(setting, "ditto", 0, 0.85)
    assert rank_methods(settings(runs)).ranks == {"Local training": 2.0, "FedAvg": 1.0, "Ditto": 3.0}
