"""What is refused before anything is started, where clients are to be at sites; and what works without Flower."""

from __future__ import annotations

import pytest

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.federation.flower import flwr_commands

FLOWER = ("--preset", "quickstart", "--engine", "flower")
REHEARSAL = (*FLOWER, "--simulate-sites", "3")

REFUSED = [
    (("train", "--preset", "quickstart", "--simulate-sites", "3"), "--simulate-sites is for clients at sites"),
    (("train", "--preset", "quickstart", "--quorum", "2"), "--quorum is for clients at sites"),
    (
        ("train", "--preset", "quickstart", "--insecure"),
        "--insecure and --allow-unauthenticated-network are for clients at sites",
    ),
    (("train", *FLOWER), "no certificates here (--federation federation): make them with"),
    (("train", *FLOWER, "--superlink", "0.0.0.0:9443"), "whoever reaches 0.0.0.0:9443 can run code at every site"),
    (("train", *FLOWER, "--superlink", "nowhere"), "'nowhere' is no address (--superlink)"),
    (("train", *FLOWER, "--superlink", "127.0.0.1:99999"), "'127.0.0.1:99999' is no address (--superlink)"),
    (
        ("train", *FLOWER, "--superlink", "10.0.0.1:99", "--insecure", "--allow-unauthenticated-network"),
        "can be reached from other machines",
    ),
    (("train", *REHEARSAL, "--superlink", "127.0.0.1:99"), "--simulate-sites starts everything by itself"),
    (("train", *REHEARSAL, "--round-timeout", "nan"), "--round-timeout"),
    (("train", *REHEARSAL, "--join-timeout", "inf"), "inf is no number of seconds (--join-timeout)"),
    (("train", *REHEARSAL, "--quorum", "9"), "a quorum of 9 is more than all who take part"),
    (("train", *REHEARSAL, "--execution", "stacked"), "clients at sites cannot be stacked"),
    (("train", *REHEARSAL, "--set", "attack.kind=flip", "--set", "attack.clients=[0]"), "is simulated in one process"),
    (("baseline", "centralized", *REHEARSAL), "Centralized pools the clients' data"),
    (
        ("train", "--preset", "quickstart-feature-shift", "--engine", "flower", "--simulate-sites", "3"),
        "this setting has 5 clients, not 3 (--simulate-sites)",
    ),
    (("site", "start"), "no shard is named (site)"),
    (("site", "init", "--shard", "client-000.txt"), "no shard of a client (client-000.txt)"),
    (("site", "status"), "no site here (site)"),
    (("federation", "init", "--host", "not a host"), "'not a host' is no name or address (--host)"),
]


@pytest.fixture
def with_flower(monkeypatch):
    """Flower is installed, as far as its version is asked for."""
    monkeypatch.setattr(flwr_commands, "installed_flower_version", lambda: "1.41.0")


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_cannot_be_is_refused_in_a_line_and_nothing_is_written(
    arguments, words, with_flower, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        app(list(arguments))
    said = capsys.readouterr().err
    assert leaving.value.code == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert words in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("version", "words"), [(None, "is not installed"), ("1.40.2", "1.41 is needed")])
def test_without_the_right_flower_it_is_named(version, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flwr_commands, "installed_flower_version", lambda: version)
    with pytest.raises(SystemExit) as leaving:
        app(["train", *REHEARSAL])
    said = capsys.readouterr().err
    assert leaving.value.code == 2
    assert words in said
    assert "pip install 'fedmosaic[flower]'" in said
