"""A client with NaN or infinite values stops the run or is skipped in the round."""

from __future__ import annotations

import json

import pytest
import torch

from fedmosaic_cli.engine.client import InProcessClient
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.errors import DivergenceError
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.runner.checkpoint_state import capture_state
from tests.toys import TOYS, models, personal_models, same

SHORT = (
    "--preset",
    "quickstart",
    "--rounds",
    "3",
    "--set",
    "train.optimizer=sgd",
    "-q",
    "--name",
    "quickstart",
    "--tag",
    "",
)
SKIP_DIVERGED = ("--set", "clients.0.lr=1e30", "--on-nan", "skip")


@pytest.fixture
def make_diverge(monkeypatch):
    """Make a client diverge in a given round."""

    def at(client, number):
        def check(self, models, kind=""):
            if (self.id, self.round) == (client, number):
                raise DivergenceError(self.id, self.round, "everything")

        monkeypatch.setattr(InProcessClient, "require_finite", check)

    return at


def client_state(client, federation):
    """Return the state that a client's next round depends on."""
    arrays, values = capture_state(federation.state)
    kept = {name: array.tobytes() for name, array in arrays.items()} | values
    return {name: value for name, value in kept.items() if name.startswith(f"client-{client}/")}


@pytest.mark.parametrize("execution", ["threads", "stacked"])
@pytest.mark.parametrize("name", [name for name in METHODS if not METHODS[name]().needs.pooled_data])
def test_skipped_client_keeps_its_state(name, execution, make_diverge):
    make_diverge(client=1, number=2)
    federation = TOYS["even"].changed(execution=execution, on_nan="skip").federation(METHODS[name]())
    with federation.worker_pool:
        rounds = run_rounds(federation, 3)
        next(rounds)
        before = client_state(1, federation)
        second = next(rounds)
        after = client_state(1, federation)
        third = next(rounds)
    assert before == after
    rows = {row["client"]: row for row in second.rows}
    assert rows[1]["left_out"] == 1
    assert rows[1]["bits_up"] == 0
    assert not any("left_out" in row for row in (rows[0], rows[2], *third.rows))
    if not any(part.sent_once for part in federation.method.uploads.values()):
        assert rows[0]["bits_up"] == third.rows[0]["bits_up"]


@pytest.mark.parametrize("execution", ["threads", "stacked"])
def test_skipped_client_does_not_affect_others(execution, make_diverge):
    """Without communication the other clients are bit-identical."""
    toy = TOYS["even"].changed(execution=execution, on_nan="skip")
    calm = toy.federation(METHODS["local"]())
    with calm.worker_pool:
        list(run_rounds(calm, 3))
    make_diverge(client=1, number=2)
    torn = toy.federation(METHODS["local"]())
    with torn.worker_pool:
        list(run_rounds(torn, 3))
    ours, theirs = personal_models(torn), personal_models(calm)
    assert same([ours[0], ours[2]], [theirs[0], theirs[2]])
    assert not same([ours[1]], [theirs[1]])


def test_skip_option_does_not_change_a_finite_run():
    plain, careful = (models(METHODS["ditto"](), TOYS["uneven"].changed(on_nan=way)) for way in ("stop", "skip"))
    assert same(plain, careful)


def test_nonfinite_weights_raise_divergence_error():
    """Weights are checked no matter which method produced them."""
    client = TOYS["even"].federation(METHODS["fedavg"]()).state.clients[2]
    with pytest.raises(DivergenceError, match="client 2"):
        client.require_finite({"model": {"weight": torch.tensor([1.0, torch.inf])}})
    client.require_finite(
        {"model": {"weight": torch.ones(2)}, "model.optimizer": {"weight": {"step": 1}}, "alpha": 0.5}
    )


def test_skipped_rounds_are_in_summary_and_report(run_command, tmp_path):
    result = run_command("baseline", "fedavg", "local", *SHORT, *SKIP_DIVERGED)
    assert result.exit_code == 0, result.stderr
    for method in ("fedavg", "local"):
        run = tmp_path / "runs" / "quickstart" / method / "seed-0"
        assert json.loads((run / "summary.json").read_text())["left_out"] == {"0": 3}
    rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
    assert len({row["accuracy"] for row in rows if row["client"] == 0}) == 1, "it never learnt anything"
    assert "‡" in run_command("report", "--markdown").stdout


def test_run_fails_if_all_clients_diverge(run_command):
    result = run_command("baseline", "fedavg", *SHORT, "--on-nan", "skip", "--set", "train.lr=1e30")
    assert result.exit_code == 1
    assert "the training loss of every client" in result.stderr
    assert "--on-nan" not in result.stderr, "it was asked for already"


def test_failed_run_does_not_stop_other_runs(run_command, tmp_path):
    result = run_command("baseline", "pfedme", "local", *SHORT, "--set", "methods.pfedme.inner_lr=1e30")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("error: 1 of 2 runs failed, the first: client 0 diverged")
    assert "runs/quickstart/local/seed-0" in result.stdout
    assert (tmp_path / "runs" / "quickstart" / "local" / "seed-0" / "summary.json").is_file()


def test_error_names_the_last_valid_checkpoint(run_command, tmp_path):
    short = ("baseline", "local", *SHORT, "--set", "train.checkpoint_every=1")
    assert run_command(*short).exit_code == 0
    longer = [word if word != "3" else "5" for word in short]
    result = run_command(*longer, "--resume", "--allow-nonidentical", "--set", "train.lr=1e30")
    assert result.exit_code == 1
    assert "diverged in round 4" in result.stderr
    assert "the newest checkpoint is " in result.stderr
    assert "checkpoints/round-00003" in result.stderr
    assert run_command(*longer, "--resume").exit_code == 0
