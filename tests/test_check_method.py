"""`fedmosaic check-method`: correct methods pass, and each usual mistake is found by the check made for it."""

from __future__ import annotations

import json

import pytest

from fedmosaic_cli.method_checks.checks import check_method
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.plugin_sources import REFERENCES, SOURCES
from fedmosaic_cli.plugins import resolve_method
from tests.conftest import fedmosaic

HEAD = """
import itertools
import random

import torch
from fedmosaic_cli import FedAvg, Local, Method, MethodInfo, Needs, Weights, params

COUNTER = itertools.count()
"""
MISTAKES = {
    "an interrupted run continues to the same bytes": """
class Mistake(FedAvg):
    def train_local_model(self, client, received):
        self.__dict__.setdefault("seen", {}).setdefault(client.id, []).append(1)
        client.train("model", lr=0.01 * len(self.seen[client.id]))
""",
    "the same seed gives the same bytes": """
class Mistake(Local):
    def local_round(self, client, received, ctx):
        client.train("model", lr=0.01 + 0.001 * next(COUNTER))
        return {}
""",
    "evaluation changes nothing": """
class Mistake(Local):
    def personal_model(self, client, received):
        client.state["count"] = client.state.get("count", 0) + 1
        return client.state["model"]
""",
    "global random generators are neither used nor changed": """
class Mistake(Local):
    def local_round(self, client, received, ctx):
        random.random()
        client.train("model")
        return {}
""",
    "remote sites give the same bytes": """
class Rounded(Weights):
    def encode(self, value, route):
        return super().encode({name: tensor.half().to(tensor.dtype) for name, tensor in value.items()}, route)

class Mistake(FedAvg):
    uploads = downloads = {"model": Rounded()}
""",
    "planned memory is sufficient": """
class Mistake(Local):
    def local_round(self, client, received, ctx):
        client.train("model")
        for number in range(4):
            client.state[f"copy{number}"] = params.clone(client.state["model"])
        return {}
""",
    "saved models are evaluated as in the last round": """
class Mistake(Local):
    def predict(self, model, predictor, examples):
        return predictor.predict(model, examples).roll(next(COUNTER), dims=1)
""",
    "runs and stays finite": """
class Mistake(Local):
    def local_round(self, client, received, ctx):
        client.train("model")
        return {"surprise": client.state["model"]}
""",
}


@pytest.fixture(autouse=True)
def clean_registries():
    """Undo all registrations of a test."""
    before = dict(METHODS), dict(SOURCES), dict(REFERENCES)
    yield
    for registry, content in zip((METHODS, SOURCES, REFERENCES), before, strict=True):
        registry.clear()
        registry.update(content)


@pytest.mark.thinned(every=8)
@pytest.mark.parametrize("name", METHODS)
def test_every_built_in_method_passes(name):
    problems = {result.name: result.problem for result in check_method(name) if result.problem}
    assert not problems


@pytest.mark.parametrize("check", MISTAKES)
def test_a_mistake_is_found(check, tmp_path):
    (tmp_path / "mistake.py").write_text(HEAD + MISTAKES[check])
    name = resolve_method(f"{tmp_path / 'mistake.py'}:Mistake")
    problems = {result.name: result.problem for result in check_method(name) if result.problem}
    assert check in problems
    assert all("\n" not in problem for problem in problems.values())


def test_the_command_prints_one_line_per_check_and_fails_with_a_problem(tmp_path):
    done = fedmosaic("check-method", "fedper", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("ok") for line in done.stdout.splitlines())
    assert not list(tmp_path.iterdir())
    (tmp_path / "mistake.py").write_text(HEAD + MISTAKES["evaluation changes nothing"])
    done = fedmosaic("check-method", "mistake.py:Mistake", "--json", cwd=tmp_path)
    assert done.returncode == 1
    failed = [result for result in json.loads(done.stdout) if result["problem"]]
    assert [result["name"] for result in failed] == ["evaluation changes nothing"]
    assert "check" in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_exception_in_the_method_names_file_and_line(tmp_path):
    text = HEAD + "class Mistake(FedAvg):\n    def aggregate(self, server, uploads, ctx):\n        return [][0]\n"
    (tmp_path / "mistake.py").write_text(text)
    done = fedmosaic("check-method", "mistake.py:Mistake", cwd=tmp_path)
    assert done.returncode == 1
    assert "IndexError in aggregate: list index out of range" in done.stdout
    assert "mistake.py, line 11" in done.stdout
