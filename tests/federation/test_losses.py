"""What becomes of a run when sites are lost, come back, or are started again, and when the coordinator is."""

from __future__ import annotations

import json
import shutil

import pytest

from fedmosaic_cli.errors import RequestError, RunFailedError, RunStateError
from fedmosaic_cli.federation import protocol
from fedmosaic_cli.federation.transport import ClientResponse
from fedmosaic_cli.runner.events import RunOptions
from fedmosaic_cli.runner.run import run_experiment
from fedmosaic_cli.storage.privacy_summary import privacy_lines
from fedmosaic_cli.storage.runs import RunDirectory
from tests.federation.sites import Sites, configured, exported, play


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("shards"))


def asked(letter, kind, number):
    head = protocol.decode_protocol_message(letter).header
    return (head["kind"], head.get("round")) == (kind, number)


def rows_of(files, number):
    return [row for row in files.read_rounds() if row["round"] == number]


@pytest.mark.parametrize("method", ["fedmosaic", "fedavg", "perfedckt"])
def test_one_may_be_lost_in_a_round_and_take_part_in_the_next(method, shards, tmp_path):
    config, sites = configured(shards, method, tmp_path), Sites(shards, tmp_path)
    sites.spoil = lambda client, letter, answer: None if client == 1 and asked(letter, "turn", 2) else answer
    files = play(config, shards, tmp_path / "run", sites)
    [_, lost, _] = rows_of(files, 2)
    assert lost["lost"] == "deadline"
    assert (lost["bits_up"], lost["bits_down"], lost["loss_private"]) == (0, 0, None)
    assert [row["client"] for row in files.read_rounds() if "lost" in row] == [1]
    assert files.read_summary()["lost"] == {"1": 1}
    if method == "fedmosaic":
        assert lost["accuracy"] == rows_of(files, 1)[1]["accuracy"], "as far as anybody knows its model is the same"
        assert lost["message"] == "missing"
        assert lost["received"] == 2


def test_too_few_are_asked_once_more_and_then_the_run_stops_where_it_can_go_on(shards, tmp_path):
    config, sites = configured(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    asked_for = []

    def down(client, letter, answer):
        if client and asked(letter, "turn", 3):
            asked_for.append(client)
            return None
        return answer

    sites.spoil = down
    with pytest.raises(RunFailedError, match=r"1 of 3 clients took part in round 3, 2 are needed \(--quorum\)"):
        play(config, shards, tmp_path / "run", sites)
    assert sorted(asked_for) == [1, 1, 2, 2]
    sites.spoil = lambda client, letter, answer: answer
    there = play(config, shards, tmp_path / "run", sites)
    here = play(config, shards, tmp_path / "here")
    assert there.read_rounds() == here.read_rounds(), "nobody was lost in any round that counts"
    assert there.read_summary()["models"] == here.read_summary()["models"]


def test_who_was_only_slow_is_heard_when_asked_once_more(shards, tmp_path):
    config, sites = configured(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    late = {1, 2}

    def slow(client, letter, answer):
        if client in late and asked(letter, "turn", 2):
            late.discard(client)
            return None
        return answer

    sites.spoil = slow
    there = play(config, shards, tmp_path / "run", sites)
    here = play(config, shards, tmp_path / "here")
    assert there.read_rounds() == here.read_rounds()


@pytest.mark.parametrize("method", ["fedmosaic", "fedavg", "apfl", "gated"])
def test_sites_that_are_started_again_before_every_letter_make_no_difference(method, shards, tmp_path):
    config, sites = configured(shards, method, tmp_path), Sites(shards, tmp_path)
    ask = sites.send_requests

    def restarted(asked_letters, seconds):
        for client in asked_letters:
            sites.restart(client)
        return ask(asked_letters, seconds)

    sites.send_requests = restarted
    there = play(config, shards, tmp_path / "run", sites)
    here = play(config, shards, tmp_path / "here")
    assert there.read_rounds() == here.read_rounds()
    assert there.read_summary()["models"] == here.read_summary()["models"]


class CoordinatorKilledError(BaseException):
    """What happens to it here."""


@pytest.mark.parametrize("method", ["fedmosaic", "fedavg"])
@pytest.mark.parametrize("kind", ["turn", "exam", "finish"])
def test_a_coordinator_that_dies_goes_on_and_sites_say_again_what_they_said(method, kind, shards, tmp_path):
    if kind == "exam" and method == "fedmosaic":
        pytest.skip("its clients are examined in their turns")
    noise = ("privacy.labels=krr", "privacy.epsilon=50") if method == "fedmosaic" else ()
    config, sites = configured(shards, method, tmp_path, *noise), Sites(shards, tmp_path)
    number = 4 if kind == "finish" else 3

    def die(client, letter, answer):
        if asked(letter, kind, number):
            said.append((client, answer))
            if len(said) == 2:
                raise CoordinatorKilledError
        return answer

    said = []
    sites.spoil = die
    with pytest.raises(CoordinatorKilledError):
        play(config, shards, tmp_path / "run", sites)
    before, sites.letters, said = dict(said), [], []
    sites.spoil = lambda client, letter, answer: answer
    files = play(config, shards, tmp_path / "run", sites)
    again = {client: answer for client, letter, answer in sites.letters if asked(letter, kind, number)}
    assert {client: again[client] for client in before} == before, "the same bytes: no noise is drawn twice"
    assert [row["round"] for row in files.read_rounds()] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]
    if method == "fedavg":
        assert files.read_rounds() == play(config, shards, tmp_path / "here").read_rounds()
    else:
        ledger = files.read_summary()["privacy"]["ledger"]
        assert sorted(entry["rounds"] for entry in ledger) == [1, 4], "a histogram once, labels in every round"


def test_a_site_that_has_forgotten_what_it_was_sent_is_sent_it_again(shards, tmp_path):
    """The exam brings what the next round begins with; sent once, it is only named then."""
    config, sites = configured(shards, "fedavg", tmp_path), Sites(shards, tmp_path)
    play(config, shards, tmp_path / "run", sites)
    sizes = [len(letter) for _, letter, _ in sites.letters if asked(letter, "turn", 3)]
    assert max(sizes) < 300
    forgetful = Sites(shards, tmp_path / "other")
    ask = forgetful.send_requests

    def forgetting(asked_letters, seconds):
        forgetful.sites[0]._cached_parts = None
        return ask(asked_letters, seconds)

    forgetful.send_requests = forgetting
    files = play(config, shards, tmp_path / "again", forgetful)
    assert files.read_rounds() == play(config, shards, tmp_path / "here").read_rounds()
    sizes = {client: len(letter) for client, letter, _ in forgetful.letters if asked(letter, "turn", 3)}
    assert sizes[0] > 10_000
    assert sizes[1] < 300


@pytest.mark.parametrize("method", ["fedmosaic", "fedavg"])
@pytest.mark.parametrize("what", ["checkpoints", "everything"])
def test_a_site_that_lost_what_it_had_learnt_does_not_begin_anew_unnoticed(what, method, shards, tmp_path):
    config, sites = configured(shards, method, tmp_path), Sites(shards, tmp_path)

    def lose(client, letter, answer):
        if client == 1 and asked(letter, "turn", 2):
            [plan] = (tmp_path / "site-1").rglob("plan.json")
            shutil.rmtree(plan.parent if what == "everything" else plan.parent / "checkpoints")
            sites.restart(1)
        return answer

    sites.spoil = lose
    with pytest.raises(RunFailedError, match=r"all rounds are played, but not everybody is here, client 1: refused: "):
        play(config, shards, tmp_path / "run", sites)
    lost = [row["lost"] for row in RunDirectory(tmp_path / "run").read_rounds() if "lost" in row]
    told = "has not joined the run" if what == "everything" else "remembers round 0 and has answered in round 2"
    assert len(lost) == 2
    assert all(told in reason for reason in lost)
    sites.spoil = lambda client, letter, answer: answer
    with pytest.raises(RunStateError, match=r"client 1 has answered in round 2, and its site remembers round 0: put"):
        play(config, shards, tmp_path / "run", sites)


def test_a_run_is_not_begun_until_everybody_is_there(shards, tmp_path):
    config, sites = configured(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    sites.reachable_clients = lambda: {0, 2}
    with pytest.raises(
        RunFailedError, match=r"not everybody joined within 5 s \(--join-timeout\), client 1: start their"
    ):
        play(config, shards, tmp_path / "run", sites)


def test_who_waits_for_sites_can_be_asked_to_stop(shards, tmp_path):
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.coordinator import RemoteCoordinator
    from fedmosaic_cli.runner.events import RunStopped, WaitingForClients
    from fedmosaic_cli.storage.runs import RunDirectory

    config, sites = configured(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    sites.reachable_clients = set
    (tmp_path / "run").mkdir()
    seen = []
    terms = RunOptions(
        device="cpu",
        remote=RemoteCoordinator("test", sites.opened),
        should_stop=lambda: WaitingForClients({0, 1, 2}) in seen,
    )
    for event in run_experiment(config, shards, RunDirectory(tmp_path / "run"), DataDirs(tmp_path), terms):
        seen.append(event)
    assert seen[-1] == RunStopped(0)


def test_noise_at_sites_comes_from_no_seed(shards, tmp_path):
    config = configured(shards, "fedct", tmp_path, "privacy.labels=krr", "privacy.epsilon=50")
    files, said = [], []
    for name in ("one", "two"):
        sites = Sites(shards, tmp_path / name)
        files.append(play(config, shards, tmp_path / f"run-{name}", sites))
        said.append([answer for _, letter, answer in sites.letters if asked(letter, "turn", 1)])
    assert files[0].read_summary()["privacy"]["noise"] == "system"
    assert "without noise: the accuracies and losses" in privacy_lines(files[0].read_summary()["privacy"])[-1]
    assert all(one != two for one, two in zip(*said, strict=True))
    here = play(config, shards, tmp_path / "here").read_summary()["privacy"]
    assert here["noise"] == "seeded"
    assert here["total_epsilon"] == files[0].read_summary()["privacy"]["total_epsilon"]


@pytest.mark.parametrize("first", ["here", "there"])
def test_a_run_is_not_continued_where_its_clients_are_not(first, shards, tmp_path):
    short, long = (configured(shards, "fedmosaic", tmp_path, f"train.rounds={n}") for n in (2, 4))
    sites = Sites(shards, tmp_path)
    play(short, shards, tmp_path / "run", sites if first == "there" else None)
    with pytest.raises(RequestError, match=r"continue it with --engine (local|flower)"):
        play(long, shards, tmp_path / "run", None if first == "there" else sites)


def test_a_run_at_sites_can_be_prolonged(shards, tmp_path):
    short, long = (configured(shards, "fedmosaic", tmp_path, f"train.rounds={n}") for n in (2, 4))
    sites = Sites(shards, tmp_path)
    play(short, shards, tmp_path / "run", sites)
    assert (
        play(long, shards, tmp_path / "run", sites).read_rounds() == play(long, shards, tmp_path / "here").read_rounds()
    )


def test_a_run_that_is_begun_anew_does_not_meet_what_sites_remember(shards, tmp_path):
    config, sites = configured(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    first = play(config, shards, tmp_path / "first", sites)
    second = play(config, shards, tmp_path / "second", sites)
    assert first.read_rounds() == second.read_rounds()
    tokens = {json.loads((files.path / "env.json").read_text())["federation"]["token"] for files in (first, second)}
    assert len(tokens) == 2


def test_a_client_that_diverges_ends_the_run_as_it_does_in_one_process(shards, tmp_path):
    config, sites = configured(shards, "fedmosaic", tmp_path, "train.lr=1e30"), Sites(shards, tmp_path)
    with pytest.raises(RunFailedError, match=r"client \d diverged in round 1 of fedmosaic-frequency, seed 0"):
        play(config, shards, tmp_path / "run", sites)


def test_a_site_that_breaks_down_says_so_and_is_lost(shards, tmp_path, monkeypatch):
    config, sites = configured(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    play_turn = sites.sites[1]._handle_local_round

    def breaking(letter):
        if letter.header["round"] == 2:
            raise ZeroDivisionError("nobody foresaw this")
        return play_turn(letter)

    monkeypatch.setattr(sites.sites[1], "_handle_local_round", breaking)
    files = play(config, shards, tmp_path / "run", sites)
    assert rows_of(files, 2)[1]["lost"] == "failed: ZeroDivisionError at the site"
    assert "nobody foresaw this" in (tmp_path / "site-1" / "crash.txt").read_text()


def test_a_loss_that_is_no_number_is_a_divergence_and_no_crash(shards, tmp_path, monkeypatch):
    from fedmosaic_cli.engine.client_pool import EvalResult
    from fedmosaic_cli.federation import site

    def examined(method, client, exam, server):
        return EvalResult(exam.client_id, exam.owner_id, 0.5, float("nan") if client.round == 2 else 1.0, {})

    monkeypatch.setattr(site, "evaluate_client", examined)
    config, sites = configured(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    with pytest.raises(RunFailedError, match=r"diverged in round 2 .* its loss on test examples is not finite"):
        play(config, shards, tmp_path / "run", sites)


def test_who_never_answers_does_not_make_everybody_wait_longer_and_longer(shards, tmp_path, monkeypatch):
    from fedmosaic_cli.federation import remote_pool

    clock = [0.0]
    monkeypatch.setattr(remote_pool.time, "monotonic", lambda: clock[0])
    config, sites = configured(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    ask, waits = sites.send_requests, []

    def slow(asked_letters, seconds):
        answers = list(ask(asked_letters, seconds))
        for answer in sorted(answers, key=lambda answer: answer.client_id):  # the last is the one that never comes
            clock[0] += 10.0 if isinstance(answer, ClientResponse) else seconds
            yield answer
        waits.append(seconds)

    sites.send_requests = slow
    sites.spoil = lambda client, letter, answer: (
        None if client == 2 and protocol.decode_protocol_message(letter).kind == "turn" else answer
    )
    play(config, shards, tmp_path / "run", sites, quorum=2)
    assert waits[1:5] == [3600, 90, 90, 90], "the first is the invitation"


def test_events_name_the_lost(shards, tmp_path):
    from fedmosaic_cli.data.data_dirs import DataDirs
    from fedmosaic_cli.federation.coordinator import RemoteCoordinator
    from fedmosaic_cli.runner.events import RoundCompleted

    config, sites = configured(shards, "fedmosaic", tmp_path), Sites(shards, tmp_path)
    sites.spoil = lambda client, letter, answer: None if client == 2 and asked(letter, "turn", 1) else answer
    (tmp_path / "run").mkdir()
    terms = RunOptions(device="cpu", remote=RemoteCoordinator("test", sites.opened))
    events = run_experiment(config, shards, RunDirectory(tmp_path / "run"), DataDirs(tmp_path), terms)
    assert [event.failed_clients for event in events if isinstance(event, RoundCompleted)] == [
        {2: "deadline"},
        {},
        {},
        {},
    ]
