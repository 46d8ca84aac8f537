"""Test the HTML of the page: well-formed, safe with hostile names, and with the results of the runs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from fedmosaic_cli.cli.report import write_html_page, write_result_files
from fedmosaic_cli.data.data_dirs import no_progress
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.report.collect import SkippedRun, collect_runs
from fedmosaic_cli.report.comparison import LOCAL_KEY, comparison_groups, method_title
from fedmosaic_cli.report.comparison_table import ComparisonTable, TableCell, TableColumn, build_rows
from fedmosaic_cli.report.html import embedded_data
from fedmosaic_cli.report.html.embedded_data import CURVE_BUDGET_EXCEEDED, embed_curves, subsampled_rounds
from fedmosaic_cli.report.html.page import (
    ENVIRONMENT,
    NUM_CLIENT_STYLES,
    build_page,
    distinct_tables,
    format_percentage_points,
    format_signed,
    header_lines,
)
from fedmosaic_cli.report.html.sections import ConfigTexts, format_quantity, summarize_group
from fedmosaic_cli.report.method_styles import client_style, contrast, method_styles
from fedmosaic_cli.report.output_files import add_rank_diagram
from fedmosaic_cli.report.statistics import MethodRanking
from fedmosaic_cli.report.stats_tables import TextTable, ranking_table
from fedmosaic_cli.safe_text import escape_control_characters
from tests.report.page_runs import HOSTILE, HOSTILE_NAME, page_of, small_federation, table_of, write_run
from tests.report.runs_by_hand import manifest_of

VOID = {"meta", "br", "input", "link", "img"}
ENTROPY_TITLE = method_title(("fedmosaic", "entropy"))
ROOT = Path(__file__).resolve().parent.parent.parent


class PageParser(HTMLParser):
    """Checks that elements are nested correctly, and collects elements and texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def attributes_of(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def texts_in(self, tag):
        return [text for name, text in self.texts if name == tag]


def embedded_json(text):
    [content] = re.findall(r'<script type="application/json" id="numbers">(.*?)</script>', text, re.DOTALL)
    return json.loads(content)


@pytest.fixture
def federation(tmp_path):
    return small_federation(tmp_path / "runs")


def test_the_page_is_well_formed_and_all_links_have_targets(federation):
    reader = PageParser(page_of(federation, commands=("fedmosaic train",)))
    ids = [attributes["id"] for _, attributes in reader.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for attributes in reader.attributes_of("a")]
    assert "#runs" in links
    assert all(link.startswith("#") and link[1:] in ids for link in links)


def test_the_page_loads_no_external_resources(federation):
    text = page_of(federation)
    reader = PageParser(text)
    for _, attributes in reader.elements:
        assert not {"src", "srcset", "action", "background", "poster", "data"} & attributes.keys()
    assert not re.search(r"url\(|@import|\bfetch\(|XMLHttpRequest|\bimport\(", text)
    # The only URL in the page is an XML namespace.
    assert set(re.findall(r"https?://[^\s\"'<]*", text)) == {"http://www.w3.org/2000/svg"}


def test_the_security_policy_allows_only_the_scripts_of_the_page(federation):
    text = page_of(federation)
    [policy] = [entry["content"] for entry in PageParser(text).attributes_of("meta") if "http-equiv" in entry]
    assert "default-src 'none'" in policy
    assert "connect" not in policy
    [scripts] = re.findall(r"script-src ([^;]*)", policy)
    ours = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in ours]
    assert scripts.split() == [f"'sha256-{digest}'" for digest in digests]
    assert len(ours) == 2


def test_hostile_names_stay_text(tmp_path):
    root = tmp_path / "runs" / "<i>'\"&"
    harmless = PageParser(page_of(small_federation(tmp_path / "harmless")))
    for seed in (0, 1):
        for variant in ("local", "fedavg"):
            run = write_run(
                root,
                HOSTILE_NAME,
                variant,
                seed,
                [0.5, 0.6],
                classes=(HOSTILE, "</script>"),
                domains=(HOSTILE, "<svg/onload=alert(1)>"),
                device=HOSTILE_NAME,
                dataset=HOSTILE_NAME,
            )
            (run / "config.yaml").write_text(HOSTILE, encoding="utf-8")
    (root / HOSTILE.replace("/", "") / "x").mkdir(parents=True)
    (root / HOSTILE.replace("/", "") / "x" / "config.yaml").write_text("")
    notes = {"notes": (HOSTILE,), "commands": (HOSTILE,)}
    text = page_of(root, [TextTable(HOSTILE, (HOSTILE, "p"), ((HOSTILE, HOSTILE),), HOSTILE)], **notes)
    reader = PageParser(text)
    assert {name for name, _ in reader.elements} <= {name for name, _ in harmless.elements} | {
        "ul",
        "li",
        "small",
        "h4",
    }
    assert len(reader.attributes_of("script")) == 3
    assert not [key for _, attributes in reader.elements for key in attributes if key.startswith("on")]
    escaped = escape_control_characters(HOSTILE)
    assert escaped in reader.texts_in("h3")
    assert escaped in "".join(reader.texts_in("code"))
    found = embedded_json(text)
    assert found["settings"][0]["label"] == HOSTILE_NAME
    assert found["settings"][0]["shards"][0]["classes"] == [HOSTILE, "</script>"]
    assert found["settings"][0]["shards"][0]["domains"] == [HOSTILE, "<svg/onload=alert(1)>"]
    assert found["texts"] == [HOSTILE]
    assert "\u2028" not in text.split('id="numbers">')[1]


def test_control_characters_and_surrogates_are_replaced(tmp_path):
    write_run(tmp_path, "s", "local", 0, [0.5])
    frame = collect_runs(tmp_path)[0].assign(group="a\x00b\udc80\x1b", device="\ud800")
    data = build_page(comparison_groups(frame), [], [SkippedRun(Path("x\udcffy"), "\x00")])
    assert b"\x00" not in data
    assert "a\ufffdb\ufffd\ufffd" in data.decode()


def test_template_expressions_are_escaped():
    template = ENVIRONMENT.from_string('<td title="{{ text }}">{{ text }}</td>{{ text|tojson }}')
    assert template.render(text="<b>\"'&\x00\u2028") == (
        '<td title="&lt;b&gt;&#34;&#39;&amp;\ufffd\u2028">&lt;b&gt;&#34;&#39;&amp;\ufffd\u2028</td>'
        '"\\u003cb\\u003e\\"\\u0027\\u0026\\u0000\\u2028"'
    )


def test_the_same_runs_give_the_same_bytes_without_torch(federation):
    script = (
        "import hashlib, sys\n"
        "from pathlib import Path\n"
        "from tests.report.page_runs import page_of\n"
        f"text = page_of(Path({str(federation)!r}))\n"
        "assert 'torch' not in sys.modules\n"
        "print(hashlib.sha256(text.encode()).hexdigest())\n"
    )
    digests = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TZ": f"UTC+{seed}"}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        digests.append(done.stdout)
    assert digests[0] == digests[1]


def test_curves_are_those_of_the_log(federation):
    found = embedded_json(page_of(federation))
    [method] = [method for method in found["settings"][0]["methods"] if method["title"] == ENTROPY_TITLE]
    assert [run["seed"] for run in method["runs"]] == [0, 1]
    curve = found["curves"][method["runs"][0]["curve"]]
    assert curve["rounds"] == [1, 2, 3, 4, 5]
    assert curve["clients"] == 3
    assert curve["values"]["accuracy"] == [
        [0.12, 0.24, 0.36, 0.48, 0.6],
        [0.12, 0.24, 0.36, 0.48, 0.6],
        [0.16, 0.32, 0.48, 0.64, 0.8],
    ]
    # Null before trust begins, one list if all clients are equal, and no key without values.
    assert [value is None for value in curve["values"]["lambda"][0]] == [True, True, False, False, False]
    assert curve["values"]["pseudo_label_accuracy"] == [[0.3333] * 5]
    assert "loss_public" not in curve["values"]
    assert "bits_up" not in curve["values"]


def test_nan_and_infinity_are_null_in_json():
    line = embedded_data.floats_to_json(embedded_data.np.array([0.123456, float("nan"), float("inf"), 1e-12, 3.0]))
    assert json.loads(line) == [0.1235, None, None, 1e-12, 3]


def test_a_run_with_a_damaged_log_loses_only_its_curves(federation):
    bad, gone = federation / "first" / "fedavg" / "seed-0", federation / "first" / "fedavg" / "seed-1"
    (bad / "rounds.jsonl").write_text('{"round": 1')
    (gone / "rounds.jsonl").unlink()
    text = page_of(federation)
    found = embedded_json(text)
    missing = [
        (method["title"], run["seed"])
        for setting in found["settings"]
        for method in setting["methods"]
        for run in method["runs"]
        if run["curve"] is None
    ]
    assert missing == [("FedAvg", 0), ("FedAvg", 1)]
    notes_shown = [line for line in PageParser(text).texts_in("li") if "Curves of a run are left out" in line]
    assert len(notes_shown) == 2
    assert str(bad / "rounds.jsonl") in notes_shown[1] + notes_shown[0]
    assert "43.33" in text  # the result is still in the tables


def test_first_seeds_have_priority_within_the_size_limit(federation, monkeypatch):
    settings = comparison_groups(collect_runs(federation)[0])
    every = embed_curves(settings)
    assert len(every.json_by_path) == 13
    assert not every.omitted
    room = sum(len(text) for text in list(every.json_by_path.values())[:8])
    some = embed_curves(settings, max_bytes=room)
    assert list(some.json_by_path) == list(every.json_by_path)[:8]
    # Seed 1 is the only, and so the first, seed of FedAvg in the second setting.
    assert [path.name for path in some.json_by_path] == [*["seed-0"] * 5, "seed-1", "seed-0", "seed-1"]
    assert set(some.omitted.values()) == {CURVE_BUDGET_EXCEEDED}
    opened = []
    monkeypatch.setattr(
        embedded_data, "MAX_TOTAL_LOG_BYTES", 2 * (next(iter(every.json_by_path)) / "rounds.jsonl").stat().st_size
    )
    monkeypatch.setattr(
        embedded_data,
        "load_round_curves",
        lambda path: opened.append(path) or {"accuracy": embedded_data.np.ones((1, 1))},
    )
    embed_curves(settings)
    assert 1 <= len(opened) <= 2


def test_the_page_reports_progress_and_left_out_curves(federation, monkeypatch):
    monkeypatch.setattr(embedded_data, "MAX_TOTAL_LOG_BYTES", 1)
    monkeypatch.setattr(embedded_data, "MAX_KEPT_ROUNDS", 3)
    assert "Curves of 13 runs are left out" in page_of(federation)
    monkeypatch.undo()
    monkeypatch.setattr(embedded_data, "MAX_KEPT_ROUNDS", 3)
    settings = comparison_groups(collect_runs(federation)[0])
    reported = []
    text = build_page(settings, [], [], on_progress=lambda *progress: reported.append(progress)).decode()
    assert reported == [(number, 13) for number in range(14)]
    assert "13 runs: only evenly spaced rounds are shown." in text
    assert embedded_json(text)["curves"][0]["rounds"] == [1, 3, 5]


@pytest.mark.parametrize(
    ("rounds", "clients", "count"), [(1, 5, 1), (100, 5, 100), (1000, 5, 100), (150, 100_000, 20), (500, 1200, 50)]
)
def test_subsampled_rounds_include_the_first_and_the_last(rounds, clients, count):
    kept = subsampled_rounds(rounds, clients)
    assert len(kept) == count
    assert (kept[0], kept[-1]) == (0, rounds - 1)


def test_the_overview_summarizes_results_in_sentences(federation):
    (federation / "unfinished").mkdir()
    (federation / "unfinished" / "config.yaml").write_text("")
    text = re.sub(r"<[^>]+>", "", page_of(federation))
    assert "Local training reaches 60.00 (0.00); Centralized reaches 90.00 (0.00)." in text
    assert f"Best of the 2 other methods: {ENTROPY_TITLE} with 66.67." in text
    assert "+6.67 points compared with Local training. It helped 4 of 6 clients, left 2 unchanged and hurt 0." in text
    assert "Centralized was not run" in text
    assert f"{federation / 'unfinished'}not finished, summary.json is missing" in text


def test_the_overview_says_if_the_best_method_without_the_oracle_is_worse_than_local(tmp_path):
    write_run(tmp_path, "s", "local", 0, [0.5, 0.6])
    write_run(tmp_path, "s", "fedavg", 0, [0.3, 0.6])
    alone = re.sub(r"<[^>]+>", "", page_of(tmp_path))
    assert "Best of" not in alone
    assert "FedAvg reaches 45.00: \u221210.00 points compared with Local training. It helped 0 of 2 clients" in alone
    write_run(tmp_path, "s", "ditto", 0, [0.5, 0.59])
    write_run(tmp_path, "s", "oracle", 0, [0.9, 0.9])
    assert "Best of the 2 other methods: Ditto with 54.50, less than Local training." in re.sub(
        r"<[^>]+>", "", page_of(tmp_path)
    )


def test_repeated_notes_are_shown_once(federation):
    settings = comparison_groups(collect_runs(federation)[0])
    tables = [
        table_of(settings, notes=("for both", "for the first")),
        table_of(settings[:1], notes=("for both", "for the second"), name="some"),
    ]
    text = build_page(settings, tables, []).decode()
    assert re.findall(r"<li>(for .*?)</li>", text) == ["for both", "for the first", "for the second"]


def test_cells_show_relation_best_value_deviation_and_seeds(federation):
    text = page_of(federation)
    relation = "worse than both references"
    mark = f'<span class="mark" role="img" aria-label="{relation}" title="{relation}">▼</span>'
    assert (
        '<td class="worst" data-value="43.3333" data-deviation="0">'
        f'<a class="result" href="#setting-0-2">43.33<small> (0.00)</small>{mark}</a></td>'
    ) in text
    assert '<td class="baseline" data-value="90" data-deviation="0"><a class="result" href="#setting-0-0">' in text
    assert '<small class="few">1 of 2 seeds</small>' in text
    assert '<span class="missing" title="not run">' in text


def test_cells_of_the_overview_lead_to_the_details_of_their_method(federation):
    text = page_of(federation)
    rows = dict(
        re.findall(r'<tr id="(setting-[\d-]+)"><th scope="row" class="method"><a href="[^"]*">([^<]*)</a>', text)
    )
    cells = re.findall(r'<th scope="row" class="method">([^<]*)<small>.*?\n(.*?)</tr>', text, re.DOTALL)
    links = {title: re.findall(r'href="#(setting-[\d-]+)"', row) for title, row in cells}
    assert links.keys() == {"Centralized", "Local training", "FedAvg", ENTROPY_TITLE}
    assert [len(targets) for targets in links.values()] == [1, 2, 2, 2]  # Centralized was run in one setting
    assert all(rows[target] == title for title, targets in links.items() for target in targets)
    setting = next(fold for _, fold in PageParser(text).elements if fold.get("id") == "setting-0")
    assert "open" not in setting


def test_one_setting_is_one_table(federation):
    settings = comparison_groups(collect_runs(federation)[0])[:1]
    tables = [table_of(settings), table_of(settings, name="label-skew", methods=[("ditto", "")])]
    text = build_page(settings, tables, []).decode()
    assert text.count(">43.33<") == 1
    assert 'id="tables"' not in text
    assert 'id="setting-0"' not in text
    assert 'href="#runs-0-2"' in text
    assert '<details class="run" id="runs-0-2">\n<summary><b>FedAvg</b><span>seed 0</span>' in text
    # The details are in the rows of the overview.
    [row] = re.findall(r'<th scope="row" class="method">FedAvg<small>.*?</tr>', text, re.DOTALL)
    values = re.findall(r'<td[^>]* data-value="([^"]*)"', row)
    assert [f"{float(value):.4g}" for value in values] == ["43.33", "-16.67", "0", "2", "4", "-0.6667", "0.008333"]


def test_a_table_with_other_results_is_kept(federation):
    settings = comparison_groups(collect_runs(federation)[0])
    some = table_of(settings[1:], name="label-skew")
    assert distinct_tables([some, table_of(settings), table_of(settings, name="hybrid")])[1] == [some]
    assert distinct_tables([some]) == (None, [some])


def test_communication_and_time_are_per_client_and_round(tmp_path):
    for seed, seconds in enumerate(([9.0, 0.1, 0.3], [9.0, 0.4, 0.6])):
        run = write_run(tmp_path, "s", "fedavg", seed, [0.5, 0.6], rounds=3, bits={"up": 900_000, "down": 300_000})
        lines = [json.dumps({"round": number, "seconds": value}) for number, value in enumerate(seconds, start=1)]
        (run / "timings.jsonl").write_text("\n".join(lines) + "\n")
    write_run(tmp_path, "s", "centralized", 0, [0.5, 0.6], rounds=3, bits={"up": None, "down": None})
    damaged = write_run(tmp_path, "s", "local", 0, [0.5, 0.6], rounds=3, bits={"up": 0, "down": 0})
    (damaged / "timings.jsonl").write_text('{"round": 1, "seconds": NaN}\n')
    [summary] = map(summarize_group, comparison_groups(collect_runs(tmp_path)[0]))
    costs = {row.title: (row.kilobytes, row.seconds) for row in summary.rows}
    # 1.2 million bits are 150 kB, of 2 clients in 3 rounds. The medians are 0.3 and 0.6 seconds.
    assert costs["FedAvg"] == (25.0, pytest.approx(0.45))
    assert costs["Centralized"] == (None, None)
    assert costs["Local training"] == (0.0, None)
    text = page_of(tmp_path)
    assert '<td data-value="25.0">25</td>' in text
    assert "they depend on the machine" in text


def test_quantities_have_three_digits_and_no_large_exponents():
    assert [format_quantity(value) for value in (0, 0.0123456, 1.5, 99.96, 38480.4)] == [
        *("0", "0.0123", "1.5", "100", "38,480"),
    ]


def test_empty_cells_have_commands(federation):
    settings = comparison_groups(collect_runs(federation)[0])
    commands = tuple(f"fedmosaic baseline centralized --preset second --seed {seed}" for seed in range(20))
    table = table_of(settings, commands=commands, num_missing=20)
    without_command = build_page(settings, [table], []).decode()
    assert "20 missing results. Run:" in without_command
    row = replace(table.rows[0], cells=(table.rows[0].cells[0], TableCell(command=commands[0])))
    text = build_page(settings, [replace(table, rows=(row, *table.rows[1:]), num_missing=1)], []).decode()
    assert "1 missing result. Run:" in text
    assert 'href="#methods-fill"' in text
    codes = PageParser(text).texts_in("code")
    assert all(command in codes for command in commands)


def test_published_results_are_shown_beside_ours(tmp_path):
    write_run(tmp_path, "practical-cifar10", "local", 0, [0.8])
    [setting] = comparison_groups(collect_runs(tmp_path)[0])
    columns = (
        TableColumn("a", setting, setting.name, heading="<both>"),
        TableColumn("b", None, "practical-fashion-mnist", "<both>"),
    )
    beside = ComparisonTable(
        "t", columns, build_rows(columns, [("local", ""), ("fedavg", "")], True), "", has_published=True
    )
    text = build_page([setting], [beside], []).decode()
    assert "paper 83.91 (0.20), \u0394 \u22123.91" in text
    assert "paper 98.23 (0.01)</small>" in text
    assert '<th scope="colgroup" colspan="2" class="heading">&lt;both&gt;</th>' in text


def test_differences_have_typographic_signs():
    assert [format_percentage_points(value) for value in (0.0123, -0.0123, 0.00001, -0.00001)] == [
        "+1.23",
        "\u22121.23",
        "0.00",
        "0.00",
    ]
    texts = ("-0.89", "+0.00", "-0.00", "+1.00", "0.05", "-", "< 0.001", "-x")
    assert [format_signed(text) for text in texts] == [
        "\u22120.89",
        "0.00",
        "0.00",
        "+1.00",
        "0.05",
        "\N{EN DASH}",
        "< 0.001",
        "-x",
    ]


def test_every_run_shows_the_command_that_created_it(federation):
    run = federation / "first" / "local" / "seed-0"
    (run / "env.json").write_text(json.dumps({"arguments": ["train", "--out", "a b; rm -rf"]}))
    (federation / "first" / "local" / "seed-1" / "env.json").write_text(json.dumps({"arguments": [1]}))
    (federation / "second" / "local" / "seed-1" / "env.json").write_text("{")
    reader = PageParser(page_of(federation))
    assert "fedmosaic train --out 'a b; rm -rf'" in reader.texts_in("code")
    assert f"fedmosaic evaluate {run}" in reader.texts_in("code")
    assert reader.texts_in("span").count("not recorded") == 2


def test_a_changed_configuration_is_not_shown(federation):
    run = federation / "first" / "local" / "seed-0"
    names = ("config.yaml", "env.json", "shards.json", "rounds.jsonl", "summary.json")
    digests = {name: hashlib.sha256((run / name).read_bytes()).hexdigest() for name in names}
    lines = [f"{digest}  {name}\n" for name, digest in {**digests, "timings.jsonl": "0" * 64}.items()]
    (run / "SHA256SUMS").write_text("".join(lines))
    assert "was changed" not in page_of(federation)
    (run / "config.yaml").write_text("method: another\n")
    text = page_of(federation)
    assert f"The configuration is not shown: the file was changed or is damaged ({run / 'config.yaml'})" in text
    assert "method: another" not in text


def test_equal_configurations_are_embedded_once(federation):
    assert sorted(embedded_json(page_of(federation))["texts"]) == [
        f"method: {variant}\n" for variant in ("centralized", "fedavg", "fedmosaic-entropy", "local")
    ]
    texts = ConfigTexts(max_chars=5)
    assert [texts.index_of(text) for text in ("abc", "abc", "abcd", "de", "f")] == [0, 0, None, 1, None]
    assert texts.as_list() == ["abc", "de"]


def test_inconsistent_manifests_are_left_out_with_a_note(tmp_path):
    from fedmosaic_cli.storage.files import to_checksummed_json

    write_run(tmp_path, "s", "local", 0, [0.5, 0.6])
    bad = write_run(tmp_path, "s", "local", 1, [0.5, 0.6])
    manifest = manifest_of([[0, 1], [1, 2]], digest="shards-1")
    manifest["public"]["class_counts"] = [1, 2, 3]
    (bad / "shards.json").write_bytes(to_checksummed_json(manifest))
    worse = write_run(tmp_path, "s", "local", 2, [0.5, 0.6])
    (worse / "shards.json").write_bytes(to_checksummed_json({"digest": "shards-2", "clients": ["nobody"]}))
    text = page_of(tmp_path)
    [held] = embedded_json(text)["settings"][0]["shards"]
    assert held["seed"] == 0
    assert held["train"] == [[0, 1], [1, 2]]
    assert held["public"] == [30, 30]
    assert [f"s, seed {seed}: no run contains a valid shard manifest" in text for seed in (0, 1, 2)] == [
        False,
        True,
        True,
    ]


def test_shards_with_unknown_public_classes_are_shown(tmp_path):
    from fedmosaic_cli.report.plots.figure_data import valid_manifest
    from fedmosaic_cli.storage.files import to_checksummed_json

    run = write_run(tmp_path, "s", "local", 0, [0.5, 0.6])
    manifest = manifest_of([[0, 1], [1, 2]], digest="shards-0")
    manifest["public"]["class_counts"] = None
    (run / "shards.json").write_bytes(to_checksummed_json(manifest))
    [held] = embedded_json(page_of(tmp_path))["settings"][0]["shards"]
    assert (held["public"], held["public_size"]) == (None, 8)
    [group] = comparison_groups(collect_runs(tmp_path)[0])
    assert valid_manifest(group, "shards-0") is not None


def test_a_page_without_statistics_has_no_such_section(federation):
    assert "#statistics" not in page_of(federation)
    assert 'id="statistics"' not in page_of(federation)
    picture = '<?xml version="1.0"?>\n<svg viewBox="0 0 1 1"><text>rank</text></svg>'
    text = page_of(federation, [TextTable("Wilcoxon", ("Method", "p"), (("a<b", "0.05"),), "Pairs.", picture)])
    assert 'href="#statistics"' in text
    assert '<section id="statistics"' in text
    assert '<svg viewBox="0 0 1 1"><text>rank</text></svg></figure>' in text
    assert "<?xml" not in text
    assert "a&lt;b" in text


def test_the_rank_diagram_uses_the_page_colour_and_has_no_title():
    ranking = MethodRanking(("a", "b"), {"Local training": 1.5, "FedAvg": 1.5, ENTROPY_TITLE: 3.0}, 2.34, 0.2)
    [sheet] = add_rank_diagram([ranking_table(ranking)], ranking)
    words = re.findall(r"<text[^>]*>([^<]*)</text>", sheet.svg)
    assert "CD = 2.34" in words
    assert not [text for text in words if "verage rank" in text or "joined by a bar" in text]
    assert "a bar joins" in sheet.note
    assert not re.search(r"#[0-9a-fA-F]{6}\b", sheet.svg)


def test_a_page_without_runs_is_well_formed(tmp_path):
    PageParser(build_page([], [], [SkippedRun(tmp_path, "damaged")]).decode())


def test_long_tables_are_closed_and_say_how_many_rows_they_have(federation):
    def table(count):
        rows = tuple((f"client {number}", "0.1", "on" if number < 3 else "off") for number in range(count))
        return TextTable(f"Gates of {count}", ("Client", "gain", "gate"), rows)

    text = page_of(federation, [table(15), table(16)])
    openings = re.findall(r'<details class="card" data-fold="Gates of \d+"( open)?>\s*(<summary>.*?</summary>)', text)
    assert [is_open for is_open, _ in openings] == [" open", ""]
    assert '<span class="facts">16 rows · gate on: 3 · gate off: 13</span>' in openings[1][1]


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("vs. Local", ("vs. Local",)),
        ("lambda < 1e-6", ("lambda ", "< 1e-6")),
        ("clients with lambda < 1e-6", ("clients with ", "lambda < 1e-6")),
        ("share of lambda < 1e-6", ("share of ", "lambda < 1e-6")),
        ("right, weighted % (oracle)", ("right, weighted % ", "(oracle)")),
        ("helped / unharmed / hurt", ("helped / ", "unharmed / hurt")),
        ("quickstart-label-skew", ("quickstart-", "label-skew")),
        ("x" * 30, ("x" * 15, "x" * 15)),
    ],
)
def test_headers_have_at_most_two_lines_and_do_not_break_numbers(name, lines):
    assert header_lines(name) == lines


def test_figures_written_with_the_page_are_linked(federation):
    assert 'id="figures"' not in page_of(federation)
    settings = comparison_groups(collect_runs(federation)[0])
    paths = ("figures/accuracy-first.png", "figures/accuracy-first.pdf", "../a b/<x>&'.png")
    text = build_page(settings, [], [], figure_paths=paths).decode()
    assert "2 figures, written together with this page" in text
    assert (
        '<li>accuracy-first <a href="figures/accuracy-first.png">PNG</a> '
        '<a href="figures/accuracy-first.pdf">PDF</a></li>'
    ) in text
    assert '<li>&lt;x&gt;&amp;&#39; <a href="../a%20b/%3Cx%3E%26%27.png">PNG</a></li>' in text


def test_links_to_figures_are_relative_to_the_page(federation, tmp_path):
    settings = comparison_groups(collect_runs(federation)[0])
    paths = write_result_files(tmp_path / "out", settings, [], True, no_progress, {"accuracy"})
    assert all(path.is_file() for path in paths)
    target = tmp_path / "pages" / "index.html"
    write_html_page(target, settings, [], [], no_progress, paths)
    links = re.findall(r'href="([^"#]+)"', target.read_text(encoding="utf-8"))
    assert links[0] == "../out/figures/accuracy-first.png"
    assert {(target.parent / link).resolve() for link in links} == {path.resolve() for path in paths}


def page_colors(theme):
    """The colours of the style sheet by name, for light (0) or dark (1) pages."""
    style = (files("fedmosaic_cli.report.html") / "style.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)
    return {name: (light, dark)[theme] for name, light, dark in pairs}


def mixed(color, ground, share):
    """The result of the CSS function `color-mix(in srgb, color share, ground)`."""
    pairs = [(int(color[start : start + 2], 16), int(ground[start : start + 2], 16)) for start in (1, 3, 5)]
    return "#" + "".join(f"{round(share * one + (1 - share) * other):02x}" for one, other in pairs)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast(theme):
    colors = page_colors(theme)
    for text in ("ink", "quiet", "accent", "baseline", "worst", "worse", "better"):
        for ground in ("card", "paper", "field"):
            assert contrast(colors[text], colors[ground]) >= 4.5, (text, ground)
    style = (files("fedmosaic_cli.report.html") / "style.css").read_text(encoding="utf-8")
    [percent] = re.findall(r"td\.better \{ background: color-mix\(in srgb, currentColor (\d+)%, var\(--card\)\)", style)
    for text in ("baseline", "worst", "worse", "better"):
        assert contrast(colors[text], mixed(colors[text], colors["card"], int(percent) / 100)) >= 4.5, text


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_lines_have_enough_contrast(theme):
    card = page_colors(["light", "dark"].index(theme))["card"]
    methods = method_styles([(name, "") for name in METHODS] + [("fedmosaic", "frequency"), ("fedmosaic", "entropy")])
    clients = {f"client {number}": client_style(number) for number in range(NUM_CLIENT_STYLES)}
    for name, style in {**methods, **clients}.items():
        assert contrast(getattr(style.color, theme), card) >= 3, name


def test_methods_have_the_colours_and_dashes_of_the_figures(federation):
    found = embedded_json(page_of(federation))
    styles = {method["title"]: method["style"] for setting in found["settings"] for method in setting["methods"]}
    local = method_styles([LOCAL_KEY])[LOCAL_KEY]
    color = f"light-dark({local.color.light}, {local.color.dark})"
    assert styles["Local training"] == {"color": color, "dash": "10 6", "marker": ""}
    assert len({(style["color"], style["dash"]) for style in styles.values()}) == len(styles) == 4
