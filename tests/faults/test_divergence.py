"""A client whose numbers are none any more: the end of the run, or of its part in a round."""

from __future__ import annotations

import json

import pytest
import torch

from fedmosaic_cli.engine.client import SimulatedClient
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.errors import DivergenceError
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.run_state import capture_state
from tests.toys import TOYS, models, personal_models, same

SHORT = ("--preset", "quickstart", "--rounds", "3", "--set", "train.optimizer=sgd", "-q")
WILD = ("--set", "clients.0.lr=1e30", "--on-nan", "skip")


@pytest.fixture
def diverges(monkeypatch):
    """Let a client diverge in a round."""

    def at(client, number):
        def check(self, models):
            if (self.id, self.round) == (client, number):
                raise DivergenceError(self.id, self.round, "everything")

        monkeypatch.setattr(SimulatedClient, "require_finite", check)

    return at


def remembered_by(client, federation):
    """Everything that a client's next round depends on."""
    arrays, values = capture_state(federation.state)
    kept = {name: array.tobytes() for name, array in arrays.items()} | values
    return {name: value for name, value in kept.items() if name.startswith(f"client-{client}/")}


@pytest.mark.parametrize("execution", ["threads", "stacked"])
@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name].is_centralized])
def test_whoever_is_left_out_is_as_before_the_round(name, execution, diverges):
    diverges(client=1, number=2)
    federation = TOYS["even"].changed(execution=execution, on_nan="skip").federation(METHODS[name]())
    with federation.worker_pool:
        rounds = run_rounds(federation, 3)
        next(rounds)
        before = remembered_by(1, federation)
        second = next(rounds)
        after = remembered_by(1, federation)
        third = next(rounds)
    assert before == after
    rows = {row["client"]: row for row in second.rows}
    assert rows[1]["left_out"] == 1
    assert rows[1]["bits_up"] == 0
    assert not any("left_out" in row for row in (rows[0], rows[2], *third.rows))
    assert rows[0]["bits_up"] == third.rows[0]["bits_up"]


@pytest.mark.parametrize("execution", ["threads", "stacked"])
def test_nobody_else_notices(execution, diverges):
    """Where nothing is exchanged: bit for bit."""
    toy = TOYS["even"].changed(execution=execution, on_nan="skip")
    calm = toy.federation(METHODS["local"]())
    with calm.worker_pool:
        list(run_rounds(calm, 3))
    diverges(client=1, number=2)
    torn = toy.federation(METHODS["local"]())
    with torn.worker_pool:
        list(run_rounds(torn, 3))
    ours, theirs = personal_models(torn), personal_models(calm)
    assert same([ours[0], ours[2]], [theirs[0], theirs[2]])
    assert not same([ours[1]], [theirs[1]])


def test_skipping_costs_nobody_anything_where_all_goes_well():
    plain, careful = (models(METHODS["ditto"](), TOYS["uneven"].changed(on_nan=way)) for way in ("stop", "skip"))
    assert same(plain, careful)


def test_a_model_that_is_none_is_found_whoever_trained_it():
    """Some methods take their own steps, and some hand their model on: what is not finite goes no further."""
    client = TOYS["even"].federation(METHODS["fedavg"]()).state.clients[2]
    with pytest.raises(DivergenceError, match="client 2"):
        client.require_finite({"model": {"weight": torch.tensor([1.0, torch.inf])}})
    client.require_finite(
        {"model": {"weight": torch.ones(2)}, "model.optimizer": {"weight": {"step": 1}}, "alpha": 0.5}
    )


def test_left_out_from_the_command_line_to_the_report(type_in, tmp_path):
    ending = type_in("baseline", "fedavg", "local", *SHORT, *WILD)
    assert ending.exit_code == 0, ending.stderr
    for method in ("fedavg", "local"):
        run = tmp_path / "runs" / "quickstart" / method / "seed-0"
        assert json.loads((run / "summary.json").read_text())["left_out"] == {"0": 3}
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert len({row["accuracy"] for row in rows if row["client"] == 0}) == 1, "it never learnt anything"
    assert "‡" in type_in("report", "--markdown").stdout


def test_where_everybody_diverges_there_is_nothing_to_skip_to(type_in):
    ending = type_in("baseline", "fedavg", *SHORT, "--on-nan", "skip", "--set", "train.lr=1e30")
    assert ending.exit_code == 1
    assert "the training loss of every client" in ending.stderr
    assert "--on-nan" not in ending.stderr, "it was asked for already"


def test_one_failed_run_does_not_take_the_others_with_it(type_in, tmp_path):
    ending = type_in("baseline", "pfedme", "local", *SHORT, "--set", "methods.pfedme.inner_lr=1e30")
    assert ending.exit_code == 1
    assert ending.stderr.splitlines()[-1].startswith("error: 1 of 2 runs failed, the first: client 0 diverged")
    assert "runs/quickstart/local/seed-0" in ending.stdout
    assert (tmp_path / "runs" / "quickstart" / "local" / "seed-0" / "summary.json").is_file()


def test_the_last_good_checkpoint_is_kept_and_named(type_in, tmp_path):
    short = ("baseline", "local", *SHORT, "--set", "train.checkpoint_every=1")
    assert type_in(*short).exit_code == 0
    longer = [word if word != "3" else "5" for word in short]
    ending = type_in(*longer, "--resume", "--allow-nonidentical", "--set", "train.lr=1e30")
    assert ending.exit_code == 1
    assert "diverged in round 4" in ending.stderr
    assert "checkpoints/round-00003 is kept" in ending.stderr
    assert type_in(*longer, "--resume").exit_code == 0
