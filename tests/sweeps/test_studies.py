"""Studies, the plans made from them, and the job runner."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path

import pytest

from fedmosaic_cli.cli.app import load_command
from fedmosaic_cli.cli.views.reproduce_view import SweepSchedule, show_sweep_schedule
from fedmosaic_cli.config.rerun_args import parse_option_values
from fedmosaic_cli.config.run_config import require_safe_name
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.registry import METHODS, PAPER_METHODS
from fedmosaic_cli.report.paper_tables import PAPER_TABLES
from fedmosaic_cli.report.plots.figure_set import LOG_FIGURES, MANIFEST_FIGURES
from fedmosaic_cli.runner.plan import RunRequest, plan_runs
from fedmosaic_cli.storage.lock import directory_lock
from fedmosaic_cli.sweeps import jobs, sweep_plan
from fedmosaic_cli.sweeps.jobs import JobRunner
from fedmosaic_cli.sweeps.relative_costs import DEFAULT_COST, RELATIVE_COSTS, SINGLE_EXCHANGE_METHODS, relative_cost
from fedmosaic_cli.sweeps.studies import COMPACT_ROWS, STUDIES, Scale
from fedmosaic_cli.sweeps.sweep_plan import (
    SweepOptions,
    SweepRunState,
    estimate_seconds,
    hyperparameter_tag,
    plan_sweep,
)

ALL_STUDIES = [(name, scale) for name in STUDIES for scale in Scale if name != "regimes" or scale is Scale.quick]
"""The scenarios of `regimes` are the same at both scales."""


@pytest.fixture(autouse=True)
def data_is_available(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep_plan, "missing_data_reason", lambda config, data_dirs: "")
    monkeypatch.chdir(tmp_path)


def run_paths(name, scale=Scale.quick, **options):
    return {run.files.path for run in plan_sweep(STUDIES[name], scale, SweepOptions(**options), DataDirs()).runs}


@pytest.mark.parametrize(("name", "scale"), ALL_STUDIES)
def test_all_runs_of_a_study_are_valid(name, scale):
    """Every run has a valid configuration, its own directory and a command that parses."""
    plan = plan_sweep(STUDIES[name], scale, SweepOptions(seeds=(0,)), DataDirs())
    study = STUDIES[name]
    assert len(plan.runs) == len(study.scenarios[scale]) * len(study.rows)
    assert plan.skipped_reasons == ()
    for job in plan.pending_jobs(plan.read_states()):
        command, *arguments = job.cli_args()
        load_command(command).make_context(command, arguments)


@pytest.mark.parametrize("name", STUDIES)
def test_scenario_names_are_unique_directory_names(name):
    scenarios = [each for scale in Scale for each in STUDIES[name].scenarios[scale]]
    for scenario in scenarios:
        require_safe_name(scenario.name)
    assert len({each.name for each in scenarios}) == len(set(scenarios))


def test_scenarios_of_one_name_are_equal_in_all_studies():
    scenarios = {each for study in STUDIES.values() for scale in Scale for each in study.scenarios[scale]}
    assert len({each.name for each in scenarios}) == len(scenarios)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_tables_and_figures_exist_in_reports(study):
    assert study.table in ("", *PAPER_TABLES)
    cross_group_figures = {"public-size", "public-skew", "regimes", "critical-difference"}
    assert {*study.figures} <= {*LOG_FIGURES, *MANIFEST_FIGURES} | cross_group_figures


def test_the_map_of_regimes_is_complete():
    runs = plan_sweep(STUDIES["regimes"], Scale.quick, SweepOptions(seeds=(0,)), DataDirs()).runs
    rows = ["local", "centralized", "fedavg", "fedavgft", "ditto", "fedmosaic entropy", "student", "oracle"]
    assert list(dict.fromkeys(run.row.title for run in runs)) == rows
    configs = {run.scenario.name: run.config for run in runs}
    assert len(configs) == 40
    coordinates = set()
    for name, config in configs.items():
        data = config.data
        kind = {"dirichlet": f"dir{data.alpha:g}", "pathological": f"path{data.classes_per_client}"}
        heterogeneity = kind.get(data.scheme, "domains")
        assert name == f"regimes-n{data.examples_per_client}-{heterogeneity}-u{data.public_size}"
        coordinates.add((data.examples_per_client, heterogeneity, data.public_size))
        assert data.dataset == ("fashion-mnist-domains" if data.scheme == "domain" else "fashion-mnist")
        assert (data.clients, data.test_examples_per_client, data.public_from) == (20, 150, 2000)
        assert (config.model.name, config.model.hidden) == ("mlp", (64,))
        train = config.train
        assert (train.rounds, train.batch_size, train.optimizer, train.lr) == (10, 25, "adam", 0.002)
        assert train.augment == "none"
        assert train.local_steps == {25: 10, 100: 10, 250: 20, 1000: 40}[data.examples_per_client]
    kinds = ("dir0.1", "dir0.5", "dir5", "path2", "domains")
    assert coordinates == set(product((25, 100, 250, 1000), kinds, (500, 2000)))


def test_the_map_of_regimes_is_not_one_of_the_paper_s_studies():
    study = STUDIES["regimes"]
    assert "not in the paper" in study.description
    assert study.scenarios[Scale.paper] == study.scenarios[Scale.quick]
    assert (study.table, study.figures) == ("", ("regimes",))
    others = {run for name in STUDIES if name != "regimes" for run in run_paths(name)}
    assert others.isdisjoint(run_paths("regimes"))


def test_a_schedule_of_many_scenarios_has_one_line_per_scenario(capsys):
    plan = plan_sweep(STUDIES["regimes"], Scale.quick, SweepOptions(seeds=(0,), methods=("student",)), DataDirs())
    states = plan.read_states()
    show_sweep_schedule(SweepSchedule("regimes", Scale.quick, plan, states, [], 2, None), is_dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["setting", "local", "student"]
    assert lines[1].split() == ["regimes-n25-dir0.1-u500", "1", "to", "do", "1", "to", "do"]
    assert len(lines) == 1 + 40 + 1


def test_the_compact_study_has_the_rows_of_the_report():
    keys = [(row.method, dict(row.hyperparameters).get("expertise", "")) for row in COMPACT_ROWS]
    assert tuple(keys) == PAPER_TABLES["compact"].method_keys


def test_label_skew_has_every_method_of_the_studies_and_fedmosaic_twice():
    plan = plan_sweep(STUDIES["label-skew"], Scale.quick, SweepOptions(), DataDirs())
    methods = {*PAPER_METHODS, "gated"}
    assert {run.row.method for run in plan.runs} == methods
    assert len(plan.runs) == 5 * (len(methods) + 1) * 3
    assert plan.runs[0].row.method == "local"
    scenarios = [run.scenario.name for run in plan.runs]
    assert scenarios == sorted(scenarios, key=list(dict.fromkeys(scenarios)).index), "grouped by scenario"
    pending = plan.pending_jobs(plan.read_states())
    assert len(pending) == 5 * (len(methods) + 1)
    assert pending[0].cli_args() == [
        *("baseline", "local", "--preset", "pathological-fashion-mnist-quick", "--seeds", "0,1,2")
    ]


def test_studies_share_equal_runs():
    assert run_paths("compact") < run_paths("hybrid")
    methods = ("fedavg", "ditto", "fedct", "perfedckt", "fedmosaic")
    assert run_paths("communication", methods=methods) < run_paths("label-skew")


def test_rows_equal_to_the_preset_use_its_directory():
    runs = plan_sweep(
        STUDIES["misleading"], Scale.quick, SweepOptions(seeds=(4,), methods=("fedmosaic",)), DataDirs()
    ).runs
    assert [str(run.files.path) for run in runs if run.row.method == "fedmosaic"] == [
        "runs/misleading-cifar10-quick/fedmosaic-entropy/seed-4",
        "runs/quickstart-misleading/fedmosaic-entropy-trust-paper/seed-4",
    ]


def test_the_tag_names_hyperparameters_that_the_variant_does_not():
    default = FedMosaic()
    assert hyperparameter_tag(FedMosaic(expertise="entropy"), default) == ""
    assert hyperparameter_tag(FedMosaic(expertise="entropy", trust=0.3), default) == "trust-0.3"
    assert (
        hyperparameter_tag(FedMosaic(trust="stabilised", warmup_rounds=2), default)
        == "warmup-rounds-2-trust-stabilised"
    )


def test_commands_contain_all_options():
    options = SweepOptions(seeds=(0, 2), methods=("fedmosaic",), runs_dir=Path("mine"), extra_args=("--device", "cpu"))
    plan = plan_sweep(STUDIES["misleading"], Scale.quick, options, DataDirs())
    assert plan.pending_jobs(plan.read_states())[-1].cli_args() == [
        *("train", "--preset", "quickstart-label-skew", "--set", "data.scheme=iid", "--set", "data.clients=5"),
        *("--set", "data.flip_labels=[0]", "--set", "methods.fedmosaic.expertise=entropy"),
        *("--set", "methods.fedmosaic.trust=paper", "--name", "quickstart-misleading", "--tag", "trust-paper"),
        *("--seeds", "0,2", "--runs-dir", "mine", "--device", "cpu"),
    ]


def planned_paths(job):
    """Return the directories that the command of a job would use."""
    words = job.cli_args()
    values = parse_option_values(words)
    request = RunRequest(
        methods=("fedmosaic" if words[0] == "train" else words[1],),
        preset=values["--preset"],
        experiment_name=values.get("--name"),
        assignments=tuple(value for word, value in pairwise(words) if word == "--set"),
        seeds=tuple(map(int, values["--seeds"].split(","))),
        tag=values.get("--tag"),
    )
    return [run.files.path for run in plan_runs(request, DataDirs()).runs]


@pytest.mark.parametrize("overrides", [(), ("methods.ditto.mu=2", "train.lr=0.1")], ids=["plain", "changed"])
@pytest.mark.parametrize("name", STUDIES)
def test_commands_use_the_directories_of_the_study(name, overrides):
    plan = plan_sweep(STUDIES[name], Scale.quick, SweepOptions(seeds=(0,), overrides=overrides), DataDirs())
    for job in plan.pending_jobs(plan.read_states()):
        assert planned_paths(job) == [run.files.path for run in job.runs], job.shell_command()


def test_local_is_part_of_every_selection_of_methods():
    plan = plan_sweep(STUDIES["hybrid"], Scale.quick, SweepOptions(methods=("ditto",)), DataDirs())
    assert list(dict.fromkeys(run.row.method for run in plan.runs)) == ["local", "ditto"]
    with pytest.raises(RequestError, match=r"unknown method 'dito' .* did you mean 'ditto'"):
        plan_sweep(STUDIES["hybrid"], Scale.quick, SweepOptions(methods=("dito",)), DataDirs())
    with pytest.raises(RequestError, match="'ditto' is not a method of this study"):
        plan_sweep(STUDIES["compact"], Scale.quick, SweepOptions(methods=("ditto",)), DataDirs())


def test_scenarios_with_overrides_are_renamed():
    changed = plan_sweep(STUDIES["hybrid"], Scale.quick, SweepOptions(overrides=("train.rounds=2",)), DataDirs()).runs
    assert {run.config.train.rounds for run in changed} == {2}
    assert run_paths("hybrid").isdisjoint({run.files.path for run in changed})
    assert all(run.scenario.name.startswith(f"{run.scenario.preset}-changed-") for run in changed)


def test_incompatible_methods_are_skipped_with_a_reason():
    options = SweepOptions(overrides=("data.public_size=0",), methods=("fedavg", "fedmosaic"))
    plan = plan_sweep(STUDIES["hybrid"], Scale.quick, options, DataDirs())
    assert {run.row.method for run in plan.runs} == {"local", "fedavg"}
    (line,) = plan.skipped_reasons
    assert line.startswith("FedMosaic needs a public set, but data.public_size is 0")


def test_runs_with_a_different_configuration_are_refused():
    (run,) = plan_sweep(STUDIES["compact"], Scale.quick, SweepOptions(seeds=(0,), methods=("local",)), DataDirs()).runs[
        :1
    ]
    run.files.path.mkdir(parents=True)
    text = "\n".join(f"{key}: {value}" for key, value in run.config.to_dict().items()).replace("'lr': 0.", "'lr': 9.")
    run.files.config_path.write_text(text.replace("None", "null").replace("True", "true").replace("False", "false"))
    with pytest.raises(
        RequestError, match=r"with a different configuration, the first: train.lr was .* another --runs-dir"
    ):
        run_paths("compact")


# Estimated durations


def log_rounds(run, seconds):
    """Write the durations of a run's rounds."""
    run.files.path.mkdir(parents=True, exist_ok=True)
    lines = [f'{{"round": {number}, "seconds": {value}}}\n' for number, value in enumerate(seconds, start=1)]
    (run.files.path / "timings.jsonl").write_text("".join(lines))


def test_without_measured_rounds_the_duration_is_unknown():
    plan = plan_sweep(STUDIES["compact"], Scale.quick, SweepOptions(seeds=(0,), methods=("fedavg",)), DataDirs())
    assert estimate_seconds(plan.pending_jobs(plan.read_states()), plan.runs, 2) is None
    assert estimate_seconds([], plan.runs, 2) == 0.0


def test_durations_are_estimated_from_measured_rounds_of_the_same_scenario():
    plan = plan_sweep(STUDIES["compact"], Scale.quick, SweepOptions(seeds=(0,), methods=("pfedme",)), DataDirs())
    local, pfedme = [run for run in plan.runs if run.scenario.name == "quickstart-hybrid"]
    local_job, pfedme_job = [
        job for job in plan.pending_jobs(plan.read_states()) if job.runs[0].scenario.name == "quickstart-hybrid"
    ]
    log_rounds(local, [2.0, 4.0])
    rounds = local.config.train.rounds
    assert estimate_seconds([local_job], plan.runs, 1) == 3.0 * (rounds - 2)
    cost = relative_cost("pfedme", "threads")
    assert estimate_seconds([pfedme_job], plan.runs, 1) == 3.0 * cost * rounds, "no round of pFedMe yet"
    (local.files.path / "env.json").write_text('{"execution": "stacked"}\n')
    cost = relative_cost("pfedme", "stacked")
    assert estimate_seconds([pfedme_job], plan.runs, 1) == 3.0 * cost * rounds
    log_rounds(pfedme, [9.0])
    assert estimate_seconds([pfedme_job], plan.runs, 1) == 9.0 * (rounds - 1)
    both = [local_job, pfedme_job]
    assert estimate_seconds(both, plan.runs, 1) == 3.0 * (rounds - 2) + 9.0 * (rounds - 1)
    assert estimate_seconds(both, plan.runs, 2) == 9.0 * (rounds - 1), "the longest job"
    other = [job for job in plan.pending_jobs(plan.read_states()) if job.runs[0].scenario.name != "quickstart-hybrid"]
    assert estimate_seconds(other, plan.runs, 1) is None, "another scenario says nothing"


def test_every_method_has_measured_costs_and_plug_ins_have_a_default():
    assert RELATIVE_COSTS.keys() == METHODS.keys()
    assert RELATIVE_COSTS["local"] == (1.0, 1.0)
    assert RELATIVE_COSTS["pfedme"].stacked != RELATIVE_COSTS["pfedme"].threads
    assert relative_cost("pfedme", "stacked") == RELATIVE_COSTS["pfedme"].stacked
    for execution in ("threads", "stacked and threads", ""):
        assert relative_cost("pfedme", execution) == RELATIVE_COSTS["pfedme"].threads
    assert relative_cost("my-method", "stacked") == DEFAULT_COST.stacked


def test_the_cost_of_an_unmeasured_method_follows_from_all_measured_ones():
    """Each measured run has its own execution."""
    options = SweepOptions(seeds=(0,), methods=("pfedme", "fedphp"))
    plan = plan_sweep(STUDIES["compact"], Scale.quick, options, DataDirs())
    runs = {run.row.method: run for run in plan.runs if run.scenario.name == "quickstart-hybrid"}
    log_rounds(runs["local"], [1.0])
    log_rounds(runs["fedphp"], [1.5 * relative_cost("fedphp", "stacked")])
    (runs["fedphp"].files.path / "env.json").write_text('{"execution": "stacked"}\n')
    [job] = [job for job in plan.pending_jobs(plan.read_states()) if job.runs == (runs["pfedme"],)]
    expected = (relative_cost("pfedme", "threads") + 1.5 * relative_cost("pfedme", "stacked")) / 2
    assert estimate_seconds([job], plan.runs, 1) == pytest.approx(expected * runs["pfedme"].config.train.rounds)


@pytest.mark.parametrize("method", sorted(SINGLE_EXCHANGE_METHODS))
def test_methods_with_one_exchange_count_for_themselves_and_when_they_are_finished(method):
    options = SweepOptions(seeds=(0, 1), methods=("fedavg", method), extended=True)
    plan = plan_sweep(STUDIES["compact"], Scale.quick, options, DataDirs())
    jobs = {
        job.runs[0].row.method: [job]
        for job in plan.pending_jobs(plan.read_states())
        if job.runs[0].scenario.name == "quickstart-hybrid"
    }
    local, started = jobs["local"][0].runs[0], jobs[method][0].runs[0]
    rounds = started.config.train.rounds
    log_rounds(started, [3.0] * (rounds - 1))
    assert estimate_seconds(jobs[method], plan.runs, 1) is None
    assert estimate_seconds(jobs["fedavg"], plan.runs, 1) is None
    log_rounds(local, [2.0])
    cost = relative_cost(method, "threads")
    assert estimate_seconds(jobs[method], plan.runs, 1) == pytest.approx(2.0 * cost * (1 + rounds))
    log_rounds(started, [3.0] * (rounds - 1) + [100.0])
    assert estimate_seconds(jobs[method], plan.runs, 1) == pytest.approx((3.0 + 97.0 / rounds) * (1 + rounds))
    cost = relative_cost("fedavg", "threads")
    assert estimate_seconds(jobs["fedavg"], plan.runs, 1) == pytest.approx(2.0 * cost * 2 * rounds)


# The job runner, with fake processes


class EndedProcess:
    """A process that has ended."""

    stderr_tail, host, pid = b"note: x\nerror: it broke (here): mend it\n", "", None

    def __init__(self, exit_code):
        self.exit_code = exit_code

    def poll(self):
        pass


@dataclass
class FakeLauncher:
    """Starts jobs that end at once with the next of the exit codes of their method, or with 0."""

    exit_codes: dict[str, list[int]] = field(default_factory=dict)
    started: list[list[str]] = field(default_factory=list)
    finished: set[tuple[str, str, str]] = field(default_factory=set)

    def start(self, args):
        self.started.append(args)
        options = parse_option_values(args)
        codes = self.exit_codes.get(args[1], [])
        code = codes.pop(0) if codes else 0
        self.finished |= {(options["--preset"], args[1], seed) for seed in options["--seeds"].split(",") if code == 0}
        return EndedProcess(code)


@pytest.fixture
def runner(monkeypatch):
    """A job runner with a fake launcher."""
    plan = plan_sweep(
        STUDIES["compact"], Scale.quick, SweepOptions(seeds=(0, 1), methods=("fedavg", "apfl")), DataDirs()
    )
    launcher = FakeLauncher()
    real_read_state = sweep_plan.SweepRun.read_state

    def read_state(run):
        is_finished = (run.scenario.preset, run.row.method, str(run.config.seed)) in launcher.finished
        return SweepRunState.FINISHED if is_finished else real_read_state(run)

    monkeypatch.setattr(sweep_plan.SweepRun, "read_state", read_state)
    monkeypatch.setattr(jobs, "RETRY_DELAY_SECONDS", 0.01)
    return JobRunner(deque(plan.pending_jobs(plan.read_states())), launcher, 2, 1, 1.0)


def run_all(runner):
    finished = []
    while runner.is_busy:
        finished += runner.poll()
        assert len(runner.running) <= runner.max_parallel
    return finished


def test_a_failed_job_does_not_affect_others(runner):
    runner.launcher.exit_codes["fedavg"] = [1, 1]
    finished = run_all(runner)
    assert {run.row.method for run in finished} == {"local", "apfl"}
    assert len(finished) == 2 * 2 * 2
    assert [failure.job.title for failure in runner.failures] == [
        *("hybrid-office10-quick, fedavg", "quickstart-hybrid, fedavg")
    ]
    assert {failure.error for failure in runner.failures} == {"it broke (here): mend it"}


def test_locked_runs_are_tried_again_and_then_skipped(runner):
    locked = runner.queue[0].runs[1]
    with directory_lock(locked.files.path):
        finished = run_all(runner)
    assert [run.title for job in runner.locked_jobs for run in job.runs] == [locked.title]
    assert locked not in finished
    assert len(finished) == 11
    assert parse_option_values(runner.launcher.started[0])["--seeds"] == "0"
    assert runner.failures == []


def test_locked_runs_are_executed_once_they_are_free(runner):
    locked = runner.queue[0].runs[1]
    with directory_lock(locked.files.path):
        finished = runner.poll()
    finished += run_all(runner)
    assert runner.locked_jobs == []
    assert locked in finished
    assert parse_option_values(runner.launcher.started[-1])["--seeds"] == "1"


def test_after_a_stop_request_nothing_is_started(runner):
    assert runner.poll(should_continue=False) == []
    assert runner.launcher.started == []


def test_crashed_jobs_are_retried_a_limited_number_of_times(runner):
    runner.max_retries = 2
    runner.launcher.exit_codes |= {"fedavg": [-9, -9], "apfl": [-9] * 6}
    finished = run_all(runner)
    assert {run.row.method for run in finished} == {"local", "fedavg"}
    assert len(finished) == 2 * 2 * 2
    assert [crash.job.runs[0].row.method for crash in runner.crashes].count("fedavg") == 2
    assert len(runner.crashes) == 2 + 4
    assert [failure.job.title for failure in runner.failures] == [
        *("hybrid-office10-quick, apfl", "quickstart-hybrid, apfl")
    ]


def test_jobs_that_fail_with_an_error_are_not_retried(runner):
    runner.max_retries = 2
    runner.launcher.exit_codes["fedavg"] = [1, 1]
    run_all(runner)
    assert runner.crashes == []
    assert len(runner.failures) == 2


def test_one_run_per_job():
    plan = plan_sweep(STUDIES["compact"], Scale.quick, SweepOptions(seeds=(0, 1), methods=("fedavg",)), DataDirs())
    separate = plan.pending_jobs(plan.read_states(), one_run_per_job=True)
    assert [run for job in separate for run in job.runs] == list(plan.runs)
    assert all(len(job.runs) == 1 for job in separate)


@pytest.mark.parametrize("name", ["label-skew", "feature-shift", "hybrid", "compact"])
def test_extended_rows_are_added_on_request_only(name):
    study = STUDIES[name]
    assert {row.method for row in study.select_rows((), extended=True)} == {
        *(row.method for row in study.select_rows(())),
        *("fedavgft", "gated", "student", "oracle"),
    }
    assert study.select_rows(()) == tuple(sorted(study.rows, key=lambda row: row.method != "local"))
    assert [row.method for row in study.select_rows(["student"], extended=True)] == ["local", "student"]
