"""Test the page in a browser, with an added script that clicks, types and points, and records the results."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedmosaic_cli.report.stats_tables import TextTable
from tests.report.page_runs import HOSTILE, HOSTILE_NAME, page_of, small_federation, write_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium")

# Shared helpers of the added scripts. `recorded` is written to the document that the browser prints.
TOOLS = """
const recorded = {errors: []};
addEventListener("error", (event) => recorded.errors.push(String(event.message)));
const $ = (selector) => document.querySelector(selector);
const $$ = (selector) => [...document.querySelectorAll(selector)];
const choose = (id, text) => {
  const select = $("#" + id);
  select.value = [...select.options].find((option) => option.textContent.startsWith(text)).value;
  select.dispatchEvent(new Event("change"));
};
const pressKey = (node, key) =>
  node.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true, cancelable: true}));
const point = (node, x, y, kind = "pointermove") => {
  const box = node.getBoundingClientRect();
  const at = {clientX: box.left + x * box.width, clientY: box.top + y * box.height};
  node.dispatchEvent(new PointerEvent(kind, {...at, pointerType: "mouse", bubbles: true}));
};
const named = (selector, text) => $$(selector).find((node) => node.textContent.trim() === text);
const waitForUpdates = () => new Promise((done) => setTimeout(done, 300));
addEventListener("load", async () => {
  try { await runScenario(); } catch (error) { recorded.errors.push(String(error.stack)); }
  const place = document.createElement("pre");
  place.id = "recorded";
  place.textContent = JSON.stringify(recorded);
  document.body.append(place);
  if (parent !== window) parent.postMessage(place.textContent, "*");
});
"""
FRAME = """<!doctype html><body style="margin:0">
<iframe src="page.html" style="width:390px;height:800px;border:0"></iframe>
<script>addEventListener("message", (event) => {
  const place = document.createElement("pre");
  place.id = "recorded"; place.textContent = event.data; document.body.append(place);
});</script></body>"""


def with_script(text: str, script: str) -> str:
    """The page with an added script that its security policy allows."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = text.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    return allowed.replace("</body>", f"<script>{script}</script>\n</body>")


def browse(path: Path, *options: str) -> str:
    """The document after the scripts have run. The console must be empty."""
    profile = path.parent / "profile"
    fixed = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000", "--window-size=1200,900")
    quiet = ("--enable-logging=stderr", "--v=0", f"--user-data-dir={profile}")
    command = [str(BROWSER), *fixed, *quiet, *options, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    return done.stdout


def run_in_page(folder: Path, text: str, script: str, *options: str, phone: bool = False) -> dict:
    """The values that the script recorded; it must not raise errors."""
    whole = f"{TOOLS}const runScenario = async () => {{ {script} }};"
    (folder / "page.html").write_text(with_script(text, whole), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME)
    printed = browse(folder / ("frame.html" if phone else "page.html"), *options)
    [found] = re.findall(r'<pre id="recorded">(.*?)</pre>', printed, re.DOTALL)
    recorded = json.loads(html.unescape(found))
    assert recorded.pop("errors") == []
    return recorded


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The page of a small federation."""
    return page_of(small_federation(tmp_path_factory.mktemp("runs")), commands=("fedmosaic baseline local",))


def test_a_click_on_a_column_head_sorts_the_table(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        """
        const head = named("#table-0 th", "second");
        const rows = () => $$("#table-0 tbody th").map((node) => node.firstChild.textContent);
        const button = head.querySelector("button");
        button.focus();
        recorded.focused = document.activeElement === button;
        recorded.orders = [[head.getAttribute("aria-sort"), rows()]];
        for (let pressKey = 0; pressKey < 3; pressKey += 1) {
          button.click();
          recorded.orders.push([head.getAttribute("aria-sort"), rows()]);
        }
        const method = named("#table-0 th", "Method");
        method.querySelector("button").click();
        recorded.names = [method.getAttribute("aria-sort"), head.getAttribute("aria-sort"), rows()];
        """,
    )
    first = ["Centralized", "Local training", "FedAvg", "FedMosaic-U"]
    assert found["focused"]
    assert found["orders"] == [
        ["none", first],
        ["descending", ["Local training", "FedMosaic-U", "FedAvg", "Centralized"]],
        ["ascending", ["FedAvg", "FedMosaic-U", "Local training", "Centralized"]],
        ["none", first],
    ]
    assert found["names"] == ["ascending", "none", ["Centralized", "FedAvg", "FedMosaic-U", "Local training"]]


def test_clients_can_be_selected_and_their_values_read(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        """
        const lines = () => $$("#explore-chart path.series").length;
        const told = () => $("#explore-chart output").textContent;
        recorded.first = [$("#explore-method").selectedOptions[0].textContent, lines()];
        choose("explore-setting", "second");
        recorded.method = $("#explore-method").selectedOptions[0].textContent;
        recorded.all = lines();
        named("#explore-picks button", "noisy").click();
        recorded.noisy = lines();
        recorded.pressed = $$("#explore-picks .chip").map((chip) => chip.getAttribute("aria-pressed"));
        const svg = $("#explore-chart svg");
        ["ArrowRight", "ArrowUp", "End"].forEach((key) => pressKey(svg, key));
        recorded.mean = told();
        named("#explore-picks button", "None").click();
        recorded.none = [lines(), told()];
        named("#explore-picks .chip", "0 plain").click();
        point(svg, 0.99, 0.5);
        recorded.pointed = told();
        point(svg, 0.99, 0.5, "pointerleave");
        recorded.left = $("#explore-chart .tip").hidden;
        svg.focus();
        pressKey(svg, "ArrowRight");
        recorded.key = told();
        pressKey(svg, "ArrowRight");
        recorded.next = told();
        pressKey(svg, "End");
        recorded.end = told();
        choose("explore-value", "Trust");
        pressKey(svg, "ArrowRight");
        recorded.gap = told();
        point(svg, 0.06, 0.85);
        recorded.beforeTheFirst = told();
        choose("explore-value", "Pseudo-label");
        pressKey(svg, "ArrowRight");
        recorded.oracle = [lines(), told(), $("#explore-value").selectedOptions[0].textContent];
        recorded.off = $$("#explore-value option:disabled").map((option) => option.textContent);
        """,
    )
    assert found["first"] == ["FedMosaic-U", 4]  # three clients and their mean
    assert found["method"] == "FedMosaic-U"
    assert found["all"] == 5
    assert found["noisy"] == 3
    assert found["pressed"] == ["false", "false", "true", "true"]
    assert found["mean"] == "Mean of 2 clients, round 5: 75.00%"
    assert found["none"] == [0, "No client is selected."]
    assert found["pointed"] == "Client 0 plain, round 5: 60.00%"
    assert found["left"]
    assert found["key"] == "Client 0 plain, round 1: 12.00%"
    assert found["next"] == "Client 0 plain, round 2: 24.00%"
    assert found["end"] == "Client 0 plain, round 5: 60.00%"
    assert found["gap"].startswith("Client 0 plain, round 3: ")
    assert found["beforeTheFirst"] == found["gap"]
    assert found["oracle"] == [1, "All clients, round 1: 33.33%", "Pseudo-label accuracy (oracle)"]
    assert found["off"] == [
        "Public loss: none",
        "Agreement with the consensus: none",
        "Accuracy of the unweighted majority (oracle): none",
        "Share of the public set in the training loss: none",
        "Agreement of the vote with the consensus: none",
        "Share of the total voting weight: none",
        "Reputation: none",
    ]


def test_methods_can_be_compared_over_seeds(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        """
        const told = () => $("#compare-chart output").textContent;
        named("#compare-picks button", "None").click();
        named("#compare-picks .chip", "Local training").click();
        recorded.bands = $$("#compare-chart polygon.band").length;
        const svg = $("#compare-chart svg");
        point(svg, 0.99, 0.1, "pointerdown");
        recorded.told = told();
        choose("compare-setting", "second");
        named("#compare-picks button", "None").click();
        named("#compare-picks .chip", "Local training").click();
        svg.focus();
        pressKey(svg, "End");
        pressKey(svg, "End");
        recorded.spread = told();
        named("#compare-picks button", "All").click();
        recorded.lines = $$("#compare-chart path.series").length;
        recorded.bandsOfAll = $$("#compare-chart polygon.band").length;
        """,
    )
    assert found["bands"] == 1
    assert found["told"] == "Local training, round 5: 60.00%, seeds from 60.00% to 60.00% (2 seeds)"
    assert found["spread"] == "Local training, round 5: 70.00%, seeds from 65.00% to 75.00% (2 seeds)"
    assert found["lines"] == 3
    assert found["bandsOfAll"] == 2  # FedAvg has one seed


def test_local_is_visible_where_fedmosaic_equals_it(tmp_path):
    for variant in ("local", "fedmosaic-entropy", "fedmosaic-frequency"):
        write_run(tmp_path / "runs", "s", variant, 0, [0.5, 0.7])
    found = run_in_page(
        tmp_path,
        page_of(tmp_path / "runs"),
        """
        const lines = $$("#compare-chart path.series").map((line) => line.getAttribute("d"));
        recorded.same = lines.length === 3 && new Set(lines).size === 1;
        const drawn = (name) => $$("#compare-chart path.series").map((line) => getComputedStyle(line)[name]);
        recorded.colours = new Set(drawn("stroke")).size;
        recorded.dashes = drawn("strokeDasharray");
        recorded.widths = drawn("strokeWidth");
        const svg = $("#compare-chart svg");
        pressKey(svg, "ArrowDown");
        recorded.told = $("#compare-chart output").textContent;
        """,
    )
    assert found["same"]
    assert found["colours"] == 3
    assert found["dashes"] == ["none", "12px, 5px", "5px, 4px"]  # the topmost line is last
    assert found["widths"] == ["3px", "3px", "1.4px"]
    assert found["told"] == "FedMosaic-W, round 1: 12.00% (1 seed); also FedMosaic-U, Local training"


def test_a_method_has_the_same_style_in_every_setting(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        """
        const looks = () => Object.fromEntries($$("#compare-picks .chip").map((chip) => {
          const line = chip.querySelector("line");
          return [chip.textContent, [getComputedStyle(line).stroke, line.getAttribute("stroke-dasharray")].join()];
        }));
        recorded.first = looks();
        choose("compare-setting", "second");
        recorded.second = looks();
        """,
    )
    first, second = found["first"], found["second"]
    assert len(set(first.values())) == len(first) == 4
    assert len(second) == 3
    assert second.items() <= first.items()


def test_axes_show_only_possible_values(tmp_path):
    for seed, accuracies in enumerate(([0.7, 0.1, 0.3], [0.7, 0.3, 0.1])):
        write_run(tmp_path / "runs", "alike", "local", seed, accuracies, rounds=1)
    write_run(tmp_path / "runs", "perfect", "fedmosaic-entropy", 0, [1.0, 1.0], rounds=1)
    write_run(tmp_path / "runs", "useless", "fedmosaic-entropy", 0, [0.0, 0.0], trust=4e-6)
    found = run_in_page(
        tmp_path,
        page_of(tmp_path / "runs"),
        """
        const ticks = (chart) => $$(`#${chart}-chart text[text-anchor=end]`).map((node) => node.textContent);
        recorded.alike = ticks("compare");
        choose("explore-setting", "perfect");
        recorded.perfect = ticks("explore");
        choose("explore-setting", "useless");
        recorded.useless = ticks("explore");
        choose("explore-value", "Trust");
        recorded.trust = ticks("explore");
        const [line, chart] = ["path.series", "svg"].map((name) => $(`#explore-chart ${name}`).getBoundingClientRect());
        recorded.height = (line.top - chart.top) / chart.height;
        recorded.tiny = [0, 2.5e-6, 1.25e-5].map((tick) => tickText(tick, 2.5e-6, false));
        recorded.large = [0, 2e5].map((tick) => tickText(tick, 1e5, false));
        """,
    )
    assert found["alike"] == ["34%", "35%", "36%", "37%", "38%", "39%"]  # the means differ by rounding errors
    assert found["perfect"] == ["95%", "96%", "97%", "98%", "99%", "100%"]
    assert found["useless"] == ["0%", "1%", "2%", "3%", "4%", "5%"]
    assert found["trust"] == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert found["height"] > 0.85
    assert found["tiny"] == ["0", "2.5e-6", "1.25e-5"]
    assert found["large"] == ["0", "2e+5"]


def test_the_map_describes_the_selected_cell(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        """
        const told = () => $("#shards-status").textContent;
        choose("shards-setting", "second");
        recorded.all = told();
        recorded.names = $$("#shards-map .names span").map((node) => node.textContent);
        const canvas = $("#shards-map canvas");
        point(canvas, 0.75, 3.5 / 5);
        recorded.pointed = told();
        const {data, width, height} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const pixel = (column, line) => {
          const at = 4 * (Math.floor((line + 0.2) * height / 5) * width + Math.floor((column + 0.2) * width / 2));
          return data.slice(at, at + 3).join();
        };
        recorded.colours = [pixel(0, 1), pixel(1, 1), pixel(1, 4), pixel(0, 0)];
        canvas.focus();
        pressKey(canvas, "Escape");
        pressKey(canvas, "ArrowDown");
        pressKey(canvas, "ArrowDown");
        pressKey(canvas, "ArrowRight");
        recorded.key = told();
        """,
    )
    assert found["all"] == "4 clients with 16 training examples, 60 public examples, 2 classes."
    assert found["names"] == ["Upublic", "0plain", "1plain", "2noisy", "3noisy"]
    assert found["pointed"] == "Client 2, noisy, class dog: 3 (60.0% of 5)"
    assert found["key"] == "Client 0, plain, class dog: 1 (100.0% of 1)"
    nothing, little, most, public = found["colours"]
    assert len({nothing, little, most}) == 3
    assert most == public  # the maximum of each colour scale


def test_the_map_uses_singular_and_plural(tmp_path):
    write_run(tmp_path / "runs", "s", "local", 0, [0.5])
    found = run_in_page(
        tmp_path,
        page_of(tmp_path / "runs"),
        """
        recorded.all = $("#shards-status").textContent;
        recorded.corner = $$("#shards-map .corner span").map((node) => node.textContent);
        """,
    )
    assert found["all"] == "1 client with 1 training example, 60 public examples, 2 classes."
    assert found["corner"] == ["class \u2192", "client \u2193"]


def test_signed_numbers_are_sorted_as_numbers(tmp_path):
    rows = tuple((name, gain) for name, gain in zip("abcd", ("+0.00", "-7.47", "-", "+1.33"), strict=True))
    federation = small_federation(tmp_path / "runs")
    found = run_in_page(
        tmp_path,
        page_of(federation, [TextTable("Gains", ("Method", "gain"), rows, "")]),
        """
        const cells = () => $$("#statistics td").map((node) => node.textContent);
        recorded.first = cells();
        named("#statistics th", "gain").querySelector("button").click();
        recorded.sorted = cells();
        """,
    )
    assert found["first"] == ["0.00", "\u22127.47", "-", "+1.33"]
    assert found["sorted"] == ["+1.33", "0.00", "\u22127.47", "-"]


def test_runs_can_be_filtered_and_show_their_configuration(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        """
        const filter = $("#runs-filter");
        const shown = () => $$(".run").filter((run) => run.checkVisibility()).length;
        recorded.closed = shown();
        filter.value = "fedavg first";
        filter.dispatchEvent(new Event("input"));
        recorded.found = [shown(), $("#runs-found").textContent];
        const run = $$(".run").find((one) => one.checkVisibility());
        run.open = true;
        run.querySelector(".config").open = true;
        await waitForUpdates();
        recorded.config = run.querySelector("pre").textContent;
        filter.value = "";
        filter.dispatchEvent(new Event("input"));
        recorded.again = shown();
        """,
    )
    assert found == {"closed": 0, "found": [2, "2 found"], "config": "method: fedavg\n", "again": 0}


def test_the_copy_button_copies_or_selects_a_command(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        """
        $("#fill-0 .copy").click();
        await waitForUpdates();
        recorded.button = $("#fill-0 .copy").textContent;
        recorded.selected = getSelection().toString();
        """,
    )
    assert (found["button"], found["selected"]) in (("Copied", ""), ("Selected", "fedmosaic baseline local"))


@pytest.mark.parametrize(("system", "ground"), [("0", "rgb(20, 23, 26)"), ("1", "rgb(246, 246, 243)")])
def test_the_theme_follows_the_system_unless_it_is_set(text, tmp_path, system, ground):
    found = run_in_page(
        tmp_path,
        text,
        """
        const ground = () => getComputedStyle(document.body).backgroundColor;
        const button = $("#theme");
        recorded.themes = [[button.textContent, ground()]];
        for (let pressKey = 0; pressKey < 3; pressKey += 1) {
          button.click();
          recorded.themes.push([button.textContent, ground()]);
        }
        button.click();
        recorded.stored = localStorage.getItem("fedmosaic-theme");
        """,
        f"--blink-settings=preferredColorScheme={system}",
    )
    assert found["themes"] == [
        ["Theme: auto", ground],
        ["Theme: light", "rgb(246, 246, 243)"],
        ["Theme: dark", "rgb(20, 23, 26)"],
        ["Theme: auto", ground],
    ]
    assert found["stored"] == "light"


def test_wide_tables_scroll_inside_the_page_on_a_phone(tmp_path):
    root = tmp_path / "runs"
    for number in range(7):
        write_run(root, f"setting-with-a-long-name-{number}", "local", 0, [0.5] * 100, classes=tuple("abcdefghijkl"))
        write_run(root, f"setting-with-a-long-name-{number}", "fedavg", 0, [0.6] * 100, classes=tuple("abcdefghijkl"))
    found = run_in_page(
        tmp_path,
        page_of(root, commands=("fedmosaic " + "word " * 60, "x" * 300)),
        """
        $$("details").forEach((one) => (one.open = true));
        await waitForUpdates();
        recorded.width = document.documentElement.scrollWidth - document.documentElement.clientWidth;
        const box = $("#table-0 .scroll");
        recorded.wide = box.scrollWidth > box.clientWidth;
        const head = box.querySelector("tbody th");
        const before = head.getBoundingClientRect().left;
        box.scrollLeft = 200;
        recorded.moved = [box.scrollLeft, head.getBoundingClientRect().left - before];
        const map = $("#shards-map .map");
        recorded.map = [map.scrollHeight > map.clientHeight, $$("#shards-map .names span").length];
        """,
        phone=True,
    )
    assert found["width"] == 0
    assert found["wide"]
    assert found["moved"] == [200, 0]
    assert found["map"] == [True, 101]


def test_long_words_stay_in_their_columns_on_a_phone(tmp_path):
    name = "x" * 80
    for variant, hyperparameters in (("local", {}), ("fedprox", {"mu": "y" * 60}), ("fedprox", {"mu": "z"})):
        place = tmp_path / "runs" / str(hyperparameters)
        write_run(place, name, variant, 0, [0.5, 0.6], hyperparameters=hyperparameters)
    picture = '<svg width="504pt" height="200pt" viewBox="0 0 504 200"><text font-size="8" x="400">rank</text></svg>'
    found = run_in_page(
        tmp_path,
        page_of(tmp_path / "runs", [TextTable("Ranks", ("Method", "rank"), (), "", picture)]),
        """
        const range = document.createRange();
        const spills = (cell) => {
          range.selectNodeContents(cell);
          return range.getBoundingClientRect().right > cell.getBoundingClientRect().right;
        };
        const names = $$("th.method, #tables thead th");
        recorded.long = names.filter((cell) => cell.textContent.length > 50).length;
        recorded.spilling = names.filter(spills).map((cell) => cell.textContent);
        const figure = $("figure");
        recorded.letters = figure.querySelector("text").getBoundingClientRect().height;
        recorded.scrolls = figure.scrollWidth > figure.clientWidth;
        recorded.width = document.documentElement.scrollWidth - document.documentElement.clientWidth;
        """,
        phone=True,
    )
    assert found["long"] == 3  # a method in the overview and in a table, and a setting
    assert found["spilling"] == []
    assert found["letters"] > 9
    assert found["scrolls"]
    assert found["width"] == 0


def test_printed_commands_are_complete(tmp_path):
    write_run(tmp_path / "runs", "s", "local", 0, [0.5])
    found = run_in_page(
        tmp_path,
        page_of(tmp_path / "runs", commands=("fedmosaic " + "word " * 200,)),
        """
        const code = $("#fill-0 code");
        const cut = () => code.scrollWidth > code.clientWidth;
        recorded.screen = cut();
        for (const rule of document.styleSheets[0].cssRules) {
          if (rule.media?.mediaText === "print") rule.media.mediaText = "all";
        }
        recorded.paper = cut();
        """,
    )
    assert found == {"screen": True, "paper": False}


def test_hostile_names_are_shown_as_text(tmp_path):
    root = tmp_path / "runs"
    for variant in ("local", "fedavg"):
        run = write_run(root, HOSTILE_NAME, variant, 0, [0.5, 0.6], classes=(HOSTILE, "b"), domains=(HOSTILE, "b"))
        (run / "config.yaml").write_text(HOSTILE, encoding="utf-8")
    found = run_in_page(
        tmp_path,
        page_of(root, notes=(HOSTILE,)),
        """
        $$("details").forEach((one) => (one.open = true));
        await waitForUpdates();
        point($("#explore-chart svg"), 0.5, 0.5);
        point($("#shards-map canvas"), 0.1, 0.9);
        recorded.images = $$("img, body svg[onload]").length;
        recorded.scripts = $$("script").length;
        recorded.option = $("#explore-setting").options[0].textContent;
        recorded.config = $(".config pre").textContent;
        recorded.class = $("#shards-map .heads span").title;
        """,
    )
    assert found == {"images": 0, "scripts": 4, "option": HOSTILE_NAME, "config": HOSTILE, "class": HOSTILE}


def test_an_added_script_is_blocked(text, tmp_path):
    """A script whose digest is not in the security policy is refused."""
    (tmp_path / "page.html").write_text(text.replace("</body>", "<script>document.title = 'taken'</script></body>"))
    with pytest.raises(AssertionError, match="Content Security Policy"):
        browse(tmp_path / "page.html")


def test_tables_and_runs_are_visible_without_javascript(text, tmp_path):
    bare = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    (tmp_path / "page.html").write_text(bare, encoding="utf-8")
    printed = browse(tmp_path / "page.html")
    assert 'class="scripted"' not in printed
    assert '<span class="result worst">43.33' in printed
    assert "fedmosaic evaluate" in printed
