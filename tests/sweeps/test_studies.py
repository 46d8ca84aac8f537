"""The table of studies, and the plan that is made of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fedmosaic_cli.cli.app import load_command
from fedmosaic_cli.config.rerun_args import parse_option_values
from fedmosaic_cli.config.run_config import require_safe_name
from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.methods.fedmosaic import FedMosaic
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.report.paper_tables import PAPER_TABLES
from fedmosaic_cli.report.plots.figure_set import LOG_FIGURES, MANIFEST_FIGURES
from fedmosaic_cli.storage.lock import directory_lock
from fedmosaic_cli.sweeps import durations, jobs, sweep_plan
from fedmosaic_cli.sweeps.jobs import JobRunner
from fedmosaic_cli.sweeps.studies import COMPACT_ROWS, STUDIES, Scale
from fedmosaic_cli.sweeps.sweep_plan import SweepOptions, SweepRunState, hyperparameter_tag, plan_sweep

EVERY = [(name, scale) for name in STUDIES for scale in Scale]


@pytest.fixture(autouse=True)
def all_data_is_here(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep_plan, "missing_data_reason", lambda config, place: "")
    monkeypatch.chdir(tmp_path)


def paths_of(name, scale=Scale.quick, **order):
    return {cell.files.path for cell in plan_sweep(STUDIES[name], scale, SweepOptions(**order), DataDirs()).runs}


@pytest.mark.parametrize(("name", "scale"), EVERY)
def test_everything_in_the_table_can_be_run(name, scale):
    """It resolves, has a place of its own, and a command that is accepted."""
    program = plan_sweep(STUDIES[name], scale, SweepOptions(seeds=(0,)), DataDirs())
    study = STUDIES[name]
    assert len(program.runs) == len(study.scenarios[scale]) * len(study.rows)
    assert program.skipped_reasons == ()
    for job in program.pending_jobs(program.read_states()):
        command, *arguments = job.cli_args()
        load_command(command).make_context(command, arguments)


@pytest.mark.parametrize("name", STUDIES)
def test_names_are_names_of_directories_and_mean_one_setting(name):
    scenarios = [each for scale in Scale for each in STUDIES[name].scenarios[scale]]
    for scenario in scenarios:
        require_safe_name(scenario.name)
    assert len({each.name for each in scenarios}) == len(set(scenarios))


def test_settings_of_one_name_are_the_same_in_all_studies():
    everywhere = {each for study in STUDIES.values() for scale in Scale for each in study.scenarios[scale]}
    assert len({each.name for each in everywhere}) == len(everywhere)


@pytest.mark.parametrize("study", STUDIES.values(), ids=STUDIES)
def test_tables_and_figures_are_those_of_reports(study):
    assert study.table in ("", *PAPER_TABLES)
    assert {*study.figures} <= {*LOG_FIGURES, *MANIFEST_FIGURES, "public-size", "public-skew", "critical-difference"}


def test_the_compact_table_has_the_rows_that_reports_give_it():
    keys = [(row.method, dict(row.hyperparameters).get("expertise", "")) for row in COMPACT_ROWS]
    assert tuple(keys) == PAPER_TABLES["compact"].method_keys


def test_the_table_on_label_skew_has_every_method_and_fedmosaic_twice():
    program = plan_sweep(STUDIES["label-skew"], Scale.quick, SweepOptions(), DataDirs())
    assert len(program.runs) == 5 * (len(METHODS) + 1) * 3
    assert program.runs[0].row.method == "local"
    settings = [cell.scenario.name for cell in program.runs]
    assert settings == sorted(settings, key=list(dict.fromkeys(settings)).index), "setting by setting"
    jobs_planned = program.pending_jobs(program.read_states())
    assert len(jobs_planned) == 5 * (len(METHODS) + 1)
    assert jobs_planned[0].cli_args() == [
        *("baseline", "local", "--preset", "pathological-fashion-mnist-quick", "--seeds", "0,1,2")
    ]


def test_studies_share_their_runs():
    assert paths_of("compact") < paths_of("hybrid")
    few = ("fedavg", "ditto", "fedct", "perfedckt", "fedmosaic")
    assert paths_of("communication", methods=few) < paths_of("label-skew")


def test_a_row_that_is_the_presets_own_lies_where_the_preset_puts_it():
    cells = plan_sweep(
        STUDIES["misleading"], Scale.quick, SweepOptions(seeds=(4,), methods=("fedmosaic",)), DataDirs()
    ).runs
    assert [str(cell.files.path) for cell in cells if cell.row.method == "fedmosaic"] == [
        "runs/misleading-cifar10-quick/fedmosaic-entropy/seed-4",
        "runs/quickstart-misleading/fedmosaic-entropy-trust-paper/seed-4",
    ]


def test_what_a_variant_does_not_tell_is_in_the_label():
    usual = FedMosaic()
    assert hyperparameter_tag(FedMosaic(expertise="entropy"), usual) == ""
    assert hyperparameter_tag(FedMosaic(expertise="entropy", trust=0.3), usual) == "trust-0.3"
    assert (
        hyperparameter_tag(FedMosaic(trust="stabilised", warmup_rounds=2), usual) == "warmup-rounds-2-trust-stabilised"
    )


def test_a_command_can_be_typed_by_anybody():
    order = SweepOptions(seeds=(0, 2), methods=("fedmosaic",), runs_dir=Path("mine"), extra_args=("--device", "cpu"))
    program = plan_sweep(STUDIES["misleading"], Scale.quick, order, DataDirs())
    assert program.pending_jobs(program.read_states())[-1].cli_args() == [
        *("train", "--preset", "quickstart", "--set", "data.scheme=iid", "--set", "data.clients=5"),
        *("--set", "data.flip_labels=[0]", "--set", "methods.fedmosaic.expertise=entropy"),
        *("--set", "methods.fedmosaic.trust=paper", "--name", "quickstart-misleading", "--tag", "trust-paper"),
        *("--seeds", "0,2", "--runs-dir", "mine", "--device", "cpu"),
    ]


def test_methods_are_chosen_and_local_stays():
    program = plan_sweep(STUDIES["hybrid"], Scale.quick, SweepOptions(methods=("ditto",)), DataDirs())
    assert list(dict.fromkeys(cell.row.method for cell in program.runs)) == ["local", "ditto"]
    with pytest.raises(RequestError, match=r"unknown method 'dito' .* did you mean 'ditto'"):
        plan_sweep(STUDIES["hybrid"], Scale.quick, SweepOptions(methods=("dito",)), DataDirs())
    with pytest.raises(RequestError, match="'ditto' has no row in this study"):
        plan_sweep(STUDIES["compact"], Scale.quick, SweepOptions(methods=("ditto",)), DataDirs())


def test_settings_that_were_changed_have_names_of_their_own():
    changed = plan_sweep(STUDIES["hybrid"], Scale.quick, SweepOptions(overrides=("train.rounds=2",)), DataDirs()).runs
    assert {cell.config.train.rounds for cell in changed} == {2}
    assert paths_of("hybrid").isdisjoint({cell.files.path for cell in changed})
    assert all(cell.scenario.name.startswith(f"{cell.scenario.preset}-changed-") for cell in changed)


def test_methods_that_do_not_fit_are_left_out_and_named():
    order = SweepOptions(overrides=("data.public_size=0",), methods=("fedavg", "fedmosaic"))
    program = plan_sweep(STUDIES["hybrid"], Scale.quick, order, DataDirs())
    assert {cell.row.method for cell in program.runs} == {"local", "fedavg"}
    (line,) = program.skipped_reasons
    assert line.startswith("FedMosaic needs a public set, but there is none")


def test_runs_under_other_conditions_are_not_touched():
    (cell,) = plan_sweep(
        STUDIES["compact"], Scale.quick, SweepOptions(seeds=(0,), methods=("local",)), DataDirs()
    ).runs[:1]
    cell.files.path.mkdir(parents=True)
    text = "\n".join(f"{key}: {value}" for key, value in cell.config.to_dict().items()).replace("'lr': 0.", "'lr': 9.")
    cell.files.config_path.write_text(text.replace("None", "null").replace("True", "true").replace("False", "false"))
    with pytest.raises(RequestError, match=r"under other conditions, the first: train.lr was .* another --runs-dir"):
        paths_of("compact")


# How long it takes


def test_without_a_run_the_time_is_a_guess_or_the_presets_own_words():
    program = plan_sweep(STUDIES["compact"], Scale.quick, SweepOptions(seeds=(0,), methods=("fedavg",)), DataDirs())
    expected = durations.estimate_duration(program.pending_jobs(program.read_states()), program.runs, 2)
    assert expected.is_guess
    assert expected.seconds == pytest.approx((4 * 5 + 2 * 7 + 2 * 3) / 2)
    program = plan_sweep(STUDIES["compact"], Scale.paper, SweepOptions(seeds=(0,)), DataDirs())
    expected = durations.estimate_duration(program.pending_jobs(program.read_states()), program.runs, 2)
    assert expected.seconds is None
    assert expected.preset_notes[1] == "hybrid-domainnet: a GPU's work."


def test_runs_tell_how_long_others_take():
    program = plan_sweep(STUDIES["compact"], Scale.quick, SweepOptions(seeds=(0,), methods=("pfedme",)), DataDirs())
    local, pfedme = [cell for cell in program.runs if cell.scenario.name == "quickstart-hybrid"]
    local.files.path.mkdir(parents=True)
    (local.files.path / "timings.jsonl").write_text('{"round": 1, "seconds": 2.0}\n{"round": 2, "seconds": 4.0}\n')
    paces = durations.RoundDurations(program.runs)
    rounds = local.config.train.rounds
    assert paces.remaining_seconds(local) == (3.0 * (rounds - 2), False)
    seconds, guessed = paces.remaining_seconds(pfedme)
    assert seconds == pytest.approx(3.0 * rounds * durations.RELATIVE_ROUND_COST["pfedme"])
    assert not guessed


# Jobs, of which none is a run


class Ended:
    """A process that has ended already."""

    said, host, pid = b"note: x\nerror: it broke (here): mend it\n", "", None

    def __init__(self, code):
        self.code = code

    def look(self):
        pass


@dataclass
class Pool:
    """Jobs end as soon as they start, with the next of the codes that `ends` has for their method; the rest well."""

    ends: dict[str, list[int]] = field(default_factory=dict)
    started: list[list[str]] = field(default_factory=list)
    finished: set[tuple[str, str, str]] = field(default_factory=set)

    def start(self, words):
        self.started.append(words)
        told = parse_option_values(words)
        codes = self.ends.get(words[1], [])
        code = codes.pop(0) if codes else 0
        self.finished |= {(told["--preset"], words[1], seed) for seed in told["--seeds"].split(",") if code == 0}
        return Ended(code)


@pytest.fixture
def crew(monkeypatch):
    """A crew with such a pool."""
    program = plan_sweep(
        STUDIES["compact"], Scale.quick, SweepOptions(seeds=(0, 1), methods=("fedavg", "apfl")), DataDirs()
    )
    pool = Pool()
    real = sweep_plan.SweepRun.read_state

    def state(cell):
        made = (cell.scenario.preset, cell.row.method, str(cell.config.seed)) in pool.finished
        return SweepRunState.FINISHED if made else real(cell)

    monkeypatch.setattr(sweep_plan.SweepRun, "read_state", state)
    monkeypatch.setattr(jobs, "RETRY_DELAY_SECONDS", 0.01)
    return JobRunner(deque(program.pending_jobs(program.read_states())), pool, 2, 1, 1.0)


def play(crew):
    done = []
    while crew.is_busy:
        done += crew.poll()
        assert len(crew.running) <= crew.max_parallel
    return done


def test_a_job_that_fails_leaves_the_others_alone(crew):
    crew.launcher.ends["fedavg"] = [1, 1]
    done = play(crew)
    assert {cell.row.method for cell in done} == {"local", "apfl"}
    assert len(done) == 2 * 2 * 2
    assert [failure.job.title for failure in crew.failures] == [
        *("hybrid-office10-quick, fedavg", "quickstart-hybrid, fedavg")
    ]
    assert {failure.error for failure in crew.failures} == {"it broke (here): mend it"}


def test_what_another_process_holds_is_tried_again_and_then_left_to_it(crew):
    held = crew.queue[0].runs[1]
    with directory_lock(held.files.path):
        done = play(crew)
    assert [cell.title for job in crew.locked_jobs for cell in job.cells] == [held.title]
    assert held not in done
    assert len(done) == 11
    assert parse_option_values(crew.launcher.started[0])["--seeds"] == "0"
    assert crew.failures == []


def test_what_another_process_held_is_made_when_it_is_free_again(crew):
    held = crew.queue[0].runs[1]
    with directory_lock(held.files.path):
        done = crew.poll()
    done += play(crew)
    assert crew.locked_jobs == []
    assert held in done
    assert parse_option_values(crew.launcher.started[-1])["--seeds"] == "1"


def test_asked_to_stop_nothing_is_started(crew):
    assert crew.poll(should_continue=False) == []
    assert crew.launcher.started == []


def test_a_job_that_crashed_is_dealt_again_but_not_for_ever(crew):
    crew.max_retries = 2
    crew.launcher.ends |= {"fedavg": [-9, -9], "apfl": [-9] * 6}
    done = play(crew)
    assert {cell.row.method for cell in done} == {"local", "fedavg"}
    assert len(done) == 2 * 2 * 2
    assert [crash.job.cells[0].row.method for crash in crew.crashes].count("fedavg") == 2
    assert len(crew.crashes) == 2 + 4
    assert [failure.job.title for failure in crew.failures] == [
        *("hybrid-office10-quick, apfl", "quickstart-hybrid, apfl")
    ]


def test_what_failed_by_itself_would_fail_again_and_is_not_dealt_again(crew):
    crew.max_retries = 2
    crew.launcher.ends["fedavg"] = [1, 1]
    play(crew)
    assert crew.crashes == []
    assert len(crew.failures) == 2


def test_for_other_machines_every_seed_is_a_job():
    program = plan_sweep(STUDIES["compact"], Scale.quick, SweepOptions(seeds=(0, 1), methods=("fedavg",)), DataDirs())
    apart = program.pending_jobs(program.read_states(), one_run_per_job=True)
    assert [cell for job in apart for cell in job.runs] == list(program.runs)
    assert all(len(job.runs) == 1 for job in apart)
