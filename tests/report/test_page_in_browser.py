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

from fedmosaic_cli.report.comparison import method_title
from fedmosaic_cli.report.stats_tables import TextTable
from tests.report.page_runs import HOSTILE, HOSTILE_NAME, page_of, small_federation, write_run
from tests.waiting import HANG_SECONDS

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ENTROPY_TITLE, FREQUENCY_TITLE = (method_title(("fedmosaic", rule)) for rule in ("entropy", "frequency"))
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs chromium")

# Shared helpers of the added scripts. `recorded` is sent to the frame around the page.
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
  parent.postMessage(JSON.stringify(recorded), "*");
});
"""
# The browser prints the document when it is loaded. An open document in a second frame delays that until the script of
# the page is done, however long it takes.
FRAME = """<!doctype html><body style="margin:0">
<iframe src="page.html" style="width:WIDTHpx;height:800px;border:0"></iframe>
<iframe id="unfinished" hidden></iframe>
<script>
const unfinished = document.getElementById("unfinished").contentDocument;
unfinished.open();
addEventListener("message", (event) => {
  const place = document.createElement("pre");
  place.id = "recorded"; place.textContent = event.data; document.body.append(place);
  unfinished.close();
});</script></body>"""
DESKTOP_WIDTH, PHONE_WIDTH = 1200, 390


def with_script(text: str, script: str) -> str:
    """The page with an added script that its security policy allows."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = text.replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    return allowed.replace("</body>", f"<script>{script}</script>\n</body>")


def browse(path: Path, *options: str) -> str:
    """The document after the scripts have run. The console must be empty."""
    profile = path.parent / "profile"
    fixed = ("--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900")
    quiet = ("--enable-logging=stderr", "--v=0", f"--user-data-dir={profile}")
    command = [str(BROWSER), *fixed, *quiet, *options, "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_SECONDS)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "CONSOLE" not in done.stderr, done.stderr[-2000:]
    return done.stdout


def run_in_page(folder: Path, text: str, script: str, *options: str, phone: bool = False) -> dict:
    """The values that the script recorded; it must not raise errors."""
    whole = f"{TOOLS}const runScenario = async () => {{ {script} }};"
    (folder / "page.html").write_text(with_script(text, whole), encoding="utf-8")
    (folder / "frame.html").write_text(FRAME.replace("WIDTH", str(PHONE_WIDTH if phone else DESKTOP_WIDTH)))
    printed = browse(folder / "frame.html", *options)
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
        const head = named("#methods th", "second");
        const rows = () => $$("#methods tbody th").map((node) => node.firstChild.textContent);
        const button = head.querySelector("button");
        button.focus();
        recorded.focused = document.activeElement === button;
        recorded.orders = [[head.getAttribute("aria-sort"), rows()]];
        for (let pressKey = 0; pressKey < 3; pressKey += 1) {
          button.click();
          recorded.orders.push([head.getAttribute("aria-sort"), rows()]);
        }
        const method = named("#methods th", "Method");
        method.querySelector("button").click();
        recorded.names = [method.getAttribute("aria-sort"), head.getAttribute("aria-sort"), rows()];
        """,
    )
    first = ["Centralized", "Local training", "FedAvg", ENTROPY_TITLE]
    assert found["focused"]
    assert found["orders"] == [
        ["none", first],
        ["descending", ["Local training", ENTROPY_TITLE, "FedAvg", "Centralized"]],
        ["ascending", ["FedAvg", ENTROPY_TITLE, "Local training", "Centralized"]],
        ["none", first],
    ]
    assert found["names"] == ["ascending", "none", ["Centralized", "FedAvg", ENTROPY_TITLE, "Local training"]]


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
        recorded.metrics = $$("#explore-value option").map((option) => option.textContent);
        const metric = () => $("#explore-value").selectedOptions[0].textContent;
        choose("explore-method", "Local");
        recorded.afterLocal = [metric()];
        choose("explore-method", "FedMosaic");
        recorded.afterLocal.push(metric());
        """,
    )
    assert found["first"] == [ENTROPY_TITLE, 4]  # three clients and their mean
    assert found["method"] == ENTROPY_TITLE
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
    assert found["metrics"] == [
        *("Accuracy", "Trust (lambda)", "Private loss", "Test loss", "Pseudo-label accuracy (oracle)"),
    ]
    assert found["afterLocal"] == ["Accuracy", "Pseudo-label accuracy (oracle)"]


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
    assert found["dashes"] == ["none", "8px, 3px", "10px, 6px"]  # the topmost line is last
    assert found["widths"] == ["2px", "2px", "1.4px"]
    assert found["told"] == f"{ENTROPY_TITLE}, round 1: 12.00% (1 seed); also {FREQUENCY_TITLE}, Local training"


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
        const edge = (column, line) => {
          const at = 4 * ((Math.ceil(line * height / 5) - 1) * width + Math.ceil(column * width / 2) - 1);
          return data.slice(at, at + 3).join();
        };
        recorded.lines = [edge(1, 1.5), edge(0.5, 2)]; // to the right of and below the empty cell
        recorded.line = resolvedColour("--line").match(/\\d+/g).join();
        canvas.focus();
        pressKey(canvas, "Escape");
        pressKey(canvas, "ArrowDown");
        pressKey(canvas, "ArrowDown");
        pressKey(canvas, "ArrowRight");
        recorded.key = told();
        """,
    )
    assert found["all"] == "4 clients with 16 training examples, 60 public examples, 2 classes."
    assert found["names"] == ["public set", "0plain", "1plain", "2noisy", "3noisy"]
    assert found["pointed"] == "Client 2, noisy, class dog: 3 (60.0% of 5)"
    assert found["key"] == "Client 0, plain, class dog: 1 (100.0% of 1)"
    nothing, little, most, public = found["colours"]
    assert len({nothing, little, most}) == 3
    assert most == public  # the maximum of each colour scale
    assert found["lines"] == [found["line"]] * 2


def test_sections_fold_and_keep_their_state(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        """
        const isOpen = (fold) => fold.open;
        const folds = () => $$("details[data-fold]");
        const section = $("#runs > details");
        recorded.first = $$("main > section > details, #curves .card").filter(isOpen).map((fold) => fold.dataset.fold);
        section.querySelector("summary").focus();
        recorded.focused = document.activeElement.localName;
        section.open = true;
        $("#overview > details").open = false;
        await waitForUpdates();
        recorded.stored = JSON.parse(localStorage.getItem(`fedmosaic-folds ${location.pathname}`));
        $("#open-all").click();
        recorded.all = folds().every(isOpen);
        recorded.runs = $$("details.run").some(isOpen);
        $("#close-all").click();
        recorded.none = folds().some(isOpen);
        $("#overview > details").open = true;
        section.open = false;
        await waitForUpdates();
        localStorage.setItem(`fedmosaic-folds ${location.pathname}`, JSON.stringify(recorded.stored));
        document.body.querySelectorAll("details[data-fold]").forEach((fold) => (fold.open = false));
        recorded.text = section.querySelector("summary").textContent.trim();
        """,
    )
    assert found["first"] == ["overview", "curves", "curves of methods"]
    assert found["focused"] == "summary"
    assert found["stored"] == ["overview", "runs"]
    assert found["all"]
    assert not found["runs"]
    assert not found["none"]
    assert found["text"] == "Runs directories, commands and configurations"


def test_stored_states_of_sections_are_restored(text, tmp_path):
    """The state of the first visit is in the storage of the browser, which is kept for the second."""
    script = """
        recorded.open = $$("main > section > details").filter((fold) => fold.open).map((fold) => fold.dataset.fold);
        $("#shards > details").open = true;
        $("#curves > details").open = false;
        await waitForUpdates();
    """
    assert run_in_page(tmp_path, text, script)["open"] == ["overview", "curves"]
    assert run_in_page(tmp_path, text, script)["open"] == ["overview", "shards"]


def test_links_open_what_they_lead_to(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        """
        document.documentElement.style.scrollBehavior = "auto";
        const visible = (selector) => $(selector).checkVisibility();
        recorded.before = [visible("#setting-1-1"), visible("#runs-1-1")];
        $('#methods a[href="#setting-1-1"]').click();
        await waitForUpdates();
        recorded.row = [visible("#setting-1-1"), $("#setting-1-1").getBoundingClientRect().top < innerHeight];
        $('#setting-1-1 a[href="#runs-1-1"]').click();
        await waitForUpdates();
        recorded.run = [visible("#runs-1-1"), $("#runs-1-1").open];
        recorded.title = $("#runs-1-1 b").textContent === $("#setting-1-1 th").textContent;
        $('nav a[href="#shards"]').click();
        recorded.section = $("#shards > details").open;
        """,
    )
    assert found["before"] == [False, False]
    assert found["row"] == found["run"] == [True, True]
    assert found["title"]
    assert found["section"]


def test_axes_fit_the_values_and_say_where_they_begin(tmp_path):
    write_run(tmp_path / "runs", "s", "fedmosaic-entropy", 0, [0.81, 0.94], rounds=1)
    found = run_in_page(
        tmp_path,
        page_of(tmp_path / "runs"),
        """
        choose("explore-value", "Accuracy");
        const ticks = () => $$("#explore-chart text[text-anchor=end]").map((node) => node.textContent);
        const title = () => $("#explore-chart text:not([text-anchor])").textContent;
        recorded.fitted = [ticks().at(0), ticks().at(-1), title()];
        recorded.hidden = $("#explore-log-switch").hidden;
        """,
    )
    assert found["fitted"] == ["80.0%", "95.0%", "Accuracy (axis from 80.0% to 95.0%)"]
    assert found["hidden"]


def test_losses_have_a_log_scale_with_a_switch(tmp_path):
    def with_losses(row):
        return {**row, "loss_private": (0.0 if row["round"] == 3 else 10.0 ** -row["round"]) * (1 + row["client"])}

    run = write_run(tmp_path / "runs", "s", "local", 0, [0.5, 0.6], rounds=4)
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    (run / "rounds.jsonl").write_text("".join(json.dumps(with_losses(row)) + "\n" for row in rows))
    found = run_in_page(
        tmp_path,
        page_of(tmp_path / "runs"),
        """
        const ticks = () => $$("#explore-chart text[text-anchor=end]").map((node) => node.textContent);
        const title = () => $("#explore-chart text:not([text-anchor])").textContent;
        choose("explore-value", "Private loss");
        recorded.log = [ticks(), title(), $("#explore-chart output").textContent.split(". ")[1]];
        // The loss of client 0 is on the ticks.
        const grid = $$("#explore-chart .grid").map((line) => Number(line.getAttribute("y1")));
        const drawn = $("#explore-chart path.series").getAttribute("d").match(/ [\\d.]+/g).map(Number);
        recorded.away = drawn.map((y) => Math.min(...grid.map((tick) => Math.abs(tick - y))));
        $("#explore-log").click();
        recorded.linear = [ticks()[0], title()];
        const ranges = [[0.3, 0.34], [0.25, 0.25], [0.02, 3], [1e-30, 1]];
        recorded.logTicks = ranges.map(([low, high]) => logTicks(low, high));
        """,
    )
    ticks, title, hidden = found["log"]
    assert ticks == ["0.0001", "0.001", "0.01", "0.1", "1"]
    assert title == "Private loss (log scale)"
    # Two clients have a loss of 0 in one round, and so has their mean.
    assert hidden == "Values of 0 or less are not on the log scale: 3."
    assert found["linear"] == ["0.00", "Private loss"]
    assert max(found["away"]) < 0.1
    narrow, equal, decade, many = found["logTicks"]
    assert narrow == [0.3, 0.4]
    assert equal == [0.1, 0.2, 0.3, 0.4, 0.5]
    assert decade == [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]
    assert len(many) <= 12
    assert many[0] <= 1e-30
    assert many[-1] >= 1


SAVING_TOOLS = """
    let onSaved, blob;
    URL.createObjectURL = (created) => { blob = created; return "#saved"; };
    URL.revokeObjectURL = () => {};
    HTMLAnchorElement.prototype.click = function () { onSaved(this.download); };
    const save = async (block, format) => {
      const name = await new Promise((done) => {
        onSaved = done;
        block.querySelector(`button[data-save=${format}]`).click();
      });
      const content = format === "png" ? [...new Uint8Array(await blob.arrayBuffer())].slice(0, 24) : await blob.text();
      return [name, content];
    };
"""


def test_pictures_and_numbers_of_charts_and_tables_can_be_saved(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        SAVING_TOOLS
        + """
        $("#open-all").click();
        await waitForUpdates();
        const blocks = $$(".savable");
        recorded.blocks = blocks.length;
        recorded.all = [];
        for (const block of blocks) {
          const [svg, png] = [await save(block, "svg"), await save(block, "png")];
          const parsed = new DOMParser().parseFromString(svg[1], "image/svg+xml");
          const root = parsed.documentElement;
          const inside = [...root.querySelectorAll("*")];
          recorded.all.push({
            names: [svg[0], png[0]], png: png[1],
            isSvg: root.localName === "svg" && !parsed.querySelector("parsererror"),
            size: [root.getAttribute("width"), root.getAttribute("height")].map(Number),
            words: [...root.querySelectorAll("text")].map((node) => node.textContent),
            styled: inside.filter((node) => node.hasAttribute("class") || /var|light-dark/.test(node.outerHTML)).length,
          });
        }
        recorded.table = await save($("#methods"), "csv");
        choose("compare-setting", "second");
        recorded.chart = await save($("#comparison"), "csv");
        recorded.map = await save($("#distribution"), "csv");
        choose("explore-value", "Private loss");
        recorded.explorer = (await save($("#explorer"), "csv"))[1].split("\\n").slice(0, 1);
        """,
    )
    assert (
        found["blocks"] == len(found["all"]) == 8
    )  # the overview, two settings, two charts, the map, two tables of diagnosis
    for saved in found["all"]:
        assert saved["isSvg"]
        assert saved["styled"] == 0
        assert min(saved["size"]) > 100
        assert [name.rpartition(".")[2] for name in saved["names"]] == ["svg", "png"]
        assert bytes(saved["png"][:8]) == b"\x89PNG\r\n\x1a\n"
        width = int.from_bytes(bytes(saved["png"][16:20]), "big")
        assert width == 2 * saved["size"][0]
    words = [" ".join(saved["words"]) for saved in found["all"]]
    assert "Local training" in words[0]
    assert "43.33 (0.00) ▼" in words[0]
    assert "first: accuracy of methods" in words[3]
    assert ENTROPY_TITLE in words[3]
    assert "public set" in words[5]
    name, content = found["table"]
    assert name == "fedmosaic-Methods-by-settings.csv"
    assert content.splitlines() == [
        "Method,first,first standard deviation,second,second standard deviation",
        "Centralized,90,0,,",
        "Local training,60,0,70,7.07107",
        "FedAvg,43.3333,0,25,",
        f"{ENTROPY_TITLE},66.6667,0,67.5,0",
    ]
    name, content = found["chart"]
    assert name == "fedmosaic-second-accuracy-of-methods.csv"
    header, *lines = content.splitlines()
    assert header == "series,round,Mean accuracy,lowest seed,highest seed"
    assert len(lines) == 15
    last = next(line for line in lines if line.startswith("Local training,5,"))
    assert [float(value) for value in last.split(",")[2:]] == pytest.approx([0.7, 0.65, 0.75])
    assert found["map"][1].splitlines()[:3] == ["client,domain,cat,dog", "public set,,30,30", "0,,0,1"]
    assert found["explorer"] == ["series,round,Private loss"]


def test_saved_numbers_are_no_formulas(tmp_path):
    rows = (("=1+1", "-7.47"), ('a "b", c', "-"), ("@x", "+1.33"))
    found = run_in_page(
        tmp_path,
        page_of(small_federation(tmp_path / "runs"), [TextTable("Gains", ("Method", "gain"), rows, "")]),
        SAVING_TOOLS + 'recorded.file = await save($("#statistics .savable"), "csv");',
    )
    assert found["file"] == ["fedmosaic-Gains.csv", 'Method,gain\n\'=1+1,-7.47\n"a ""b"", c",\n\'@x,+1.33\n']


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
    assert found["first"] == ["0.00", "\u22127.47", "\u2013", "+1.33"]
    assert found["sorted"] == ["+1.33", "0.00", "\u22127.47", "\u2013"]


def test_runs_can_be_filtered_and_show_their_configuration(text, tmp_path):
    found = run_in_page(
        tmp_path,
        text,
        """
        const filter = $("#runs-filter");
        const shown = () => $$(".run").filter((run) => run.checkVisibility()).length;
        $("#runs > details").open = true;
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


def test_the_copy_buttons_copy_unwrapped_commands(tmp_path):
    commands = ("fedmosaic baseline " + "a-long-name " * 40 + "end", "fedmosaic train --set 'a b=<&>'")
    found = run_in_page(
        tmp_path,
        page_of(small_federation(tmp_path / "runs"), commands=commands),
        """
        recorded.copied = [];
        recorded.buttons = [];
        const copy = async (button) => {
          button.click();
          await waitForUpdates();
          recorded.buttons.push(button.textContent);
        };
        const clipboard = { writeText: async (text) => recorded.copied.push(text) };
        Object.defineProperty(navigator, "clipboard", { value: clipboard, configurable: true });
        await copy($("#methods-fill .copy"));
        await copy($("#methods-fill .copy.all"));
        // Without a clipboard, the text is copied from a selection.
        Object.defineProperty(navigator, "clipboard", { value: undefined });
        document.execCommand = (name) => recorded.copied.push(`${name} ${getSelection()}`) > 0;
        await copy($("#methods-fill .copy"));
        document.execCommand = () => false;
        await copy($("#methods-fill .copy.all"));
        recorded.areas = $$("textarea").length;
        """,
    )
    assert found["copied"] == [commands[0], "\n".join(commands), f"copy {commands[0]}"]
    assert found["buttons"] == ["Copied", "Copied", "Copied", "Not copied"]
    assert found["areas"] == 0


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
        const box = $("#methods .scroll");
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


def test_a_gradient_hints_at_boxes_that_scroll_on_a_phone(tmp_path):
    found = run_in_page(
        tmp_path,
        page_of(small_federation(tmp_path / "runs"), [TextTable("Gains", ("Method",), (("a",),), "")]),
        """
        const hints = (box) => [...box.classList].filter((name) => name.startsWith("more"));
        const scrolled = async (selector) => {
          const box = $(selector);
          const before = [hints(box), getComputedStyle(box).maskImage !== "none"];
          box.scrollLeft = 1e6;
          await waitForUpdates();
          return [...before, hints(box)];
        };
        recorded.menu = await scrolled("nav");
        recorded.table = await scrolled("#methods .scroll");
        $("#open-all").click();
        await waitForUpdates();
        recorded.narrow = hints($("#statistics .scroll"));
        """,
        phone=True,
    )
    assert found["menu"] == found["table"] == [["more-right"], True, ["more-left"]]
    assert found["narrow"] == []


def test_column_heads_have_at_most_two_lines_on_a_phone(tmp_path):
    heads = ("Method", "lambda < 1e-6", "right, weighted % (oracle)", "helped / unharmed / hurt", "a-b_" * 20)
    found = run_in_page(
        tmp_path,
        page_of(small_federation(tmp_path / "runs"), [TextTable("Gains", heads, (("a", *"1234"),), "")]),
        """
        $("#open-all").click();
        await waitForUpdates();
        const lines = (cell) => new Set(wordsOf(cell).map(({ rect }) => Math.round(rect.top))).size;
        recorded.lines = $$("thead th").map(lines);
        recorded.heads = $$("#statistics thead th").map((cell) => cell.innerText.trim().split("\\n"));
        """,
        phone=True,
    )
    assert max(found["lines"]) == 2
    assert found["heads"][1] == ["lambda", "< 1e-6"]


def test_long_words_stay_in_their_columns_on_a_phone(tmp_path):
    name = "x" * 80
    for variant, hyperparameters in (("local", {}), ("fedprox", {"mu": "y" * 60}), ("fedprox", {"mu": "z"})):
        place = tmp_path / "runs" / str(hyperparameters)
        write_run(place, name, variant, 0, [0.5, 0.6], hyperparameters=hyperparameters)
    write_run(tmp_path / "runs", "other", "local", 0, [0.5, 0.6])
    picture = '<svg width="504pt" height="200pt" viewBox="0 0 504 200"><text font-size="8" x="400">rank</text></svg>'
    found = run_in_page(
        tmp_path,
        page_of(tmp_path / "runs", [TextTable("Ranks", ("Method", "rank"), (), "", picture)]),
        """
        $("#open-all").click();
        await waitForUpdates();
        const range = document.createRange();
        const spills = (cell) => {
          range.selectNodeContents(cell);
          return range.getBoundingClientRect().right > cell.getBoundingClientRect().right;
        };
        const names = $$("th.method, #methods thead th");
        recorded.long = names.filter((cell) => cell.textContent.length > 50).length;
        recorded.spilling = names.filter(spills).map((cell) => cell.textContent);
        const figure = $("figure");
        recorded.letters = figure.querySelector("text").getBoundingClientRect().height;
        recorded.scrolls = figure.scrollWidth > figure.clientWidth;
        recorded.width = document.documentElement.scrollWidth - document.documentElement.clientWidth;
        """,
        phone=True,
    )
    assert found["long"] == 3  # a method in the overview and in the details, and a setting
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
        const code = $("#methods-fill code");
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
    assert '<a class="result" href="#setting-0-2">43.33' in printed
    assert "fedmosaic evaluate" in printed
