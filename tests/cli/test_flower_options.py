"""Invalid options of federated commands are refused before any process is started."""

from __future__ import annotations

import pytest

from fedmosaic_cli.cli.app import app
from fedmosaic_cli.federation.flower import flwr_commands

FLOWER = ("--preset", "quickstart", "--engine", "flower")
SIMULATED = (*FLOWER, "--simulate-sites", "3")

REFUSED = [
    (("train", "--preset", "quickstart", "--simulate-sites", "3"), "--simulate-sites is for clients at sites"),
    (("train", "--preset", "quickstart", "--quorum", "2"), "--quorum is for clients at sites"),
    (
        ("train", "--preset", "quickstart", "--insecure"),
        "--insecure and --allow-unauthenticated-network are for clients at sites",
    ),
    (("train", *FLOWER), "no certificates here (--federation federation): make them with"),
    (
        ("train", *FLOWER, "--superlink", "0.0.0.0:9443"),
        "every machine that reaches 0.0.0.0:9443 can stop runs and register keys",
    ),
    (("train", *FLOWER, "--superlink", "nowhere"), "'nowhere' is not an address (--superlink)"),
    (("train", *FLOWER, "--superlink", "127.0.0.1:99999"), "'127.0.0.1:99999' is not an address (--superlink)"),
    (
        ("train", *FLOWER, "--superlink", "10.0.0.1:99", "--insecure", "--allow-unauthenticated-network"),
        "can be reached from other machines",
    ),
    (("train", *SIMULATED, "--superlink", "127.0.0.1:99"), "--simulate-sites starts its own SuperLink"),
    (("train", *SIMULATED, "--round-timeout", "nan"), "--round-timeout"),
    (("train", *SIMULATED, "--join-timeout", "inf"), "inf is not a number of seconds (--join-timeout)"),
    (("train", *SIMULATED, "--quorum", "9"), "a quorum of 9 is more than the 3 clients of a round"),
    (("train", *SIMULATED, "--execution", "stacked"), "clients at sites cannot be stacked"),
    (("train", *SIMULATED, "--set", "attack.kind=flip", "--set", "attack.clients=[0]"), "is simulated in one process"),
    (("baseline", "centralized", *SIMULATED), "Centralized pools the clients' data"),
    (
        ("train", "--preset", "quickstart-feature-shift", "--engine", "flower", "--simulate-sites", "3"),
        "this setting has 5 clients, not 3 (--simulate-sites)",
    ),
    (("site", "start"), "no shard is given (site)"),
    (("site", "init", "--shard", "client-000.txt"), "not the shard of a client (client-000.txt)"),
    (("site", "status"), "no site here (site)"),
    (("federation", "init", "--host", "not a host"), "'not a host' is not a name or address (--host)"),
]


@pytest.fixture
def with_flower(monkeypatch):
    """Pretend that the supported version of Flower is installed."""
    monkeypatch.setattr(flwr_commands, "installed_flower_version", lambda: "1.41.0")


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_invalid_options_are_refused_in_one_line_and_nothing_is_written(
    arguments, words, with_flower, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as exit_info:
        app(list(arguments))
    stderr = capsys.readouterr().err
    assert exit_info.value.code == 2
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert words in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("version", "words"), [(None, "is not installed"), ("1.40.2", "1.41 is needed")])
def test_a_missing_or_unsupported_flower_is_named(version, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(flwr_commands, "installed_flower_version", lambda: version)
    with pytest.raises(SystemExit) as exit_info:
        app(["train", *SIMULATED])
    stderr = capsys.readouterr().err
    assert exit_info.value.code == 2
    assert words in stderr
    assert "python -m pip install -e '.[flower]' in a checkout of fedmosaic" in stderr
