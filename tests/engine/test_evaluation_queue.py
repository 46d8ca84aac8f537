"""Batches of one client that several workers predict give the bits of one worker."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.partitioning.partition import Partition, Shard
from fedmosaic_cli.engine.eval_batches import CPU_EVAL_BATCH_SIZE
from fedmosaic_cli.engine.evaluation_queue import EvaluationQueue
from fedmosaic_cli.engine.examples import Examples
from fedmosaic_cli.engine.network_learner import NetworkLearner
from fedmosaic_cli.engine.rounds import run_rounds
from fedmosaic_cli.engine.train_settings import TrainSettings
from fedmosaic_cli.methods.registry import METHODS
from fedmosaic_cli.models.model_settings import ModelSettings
from tests.toys import Toy, images

CPU = torch.device("cpu")


def learner_and_examples(count: int) -> tuple[NetworkLearner, Examples]:
    learner = NetworkLearner(ModelSettings(name="mlp", hidden=(8,)), TrainSettings(), (1, 4, 4), 3, CPU)
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (count, 4, 4, 1), np.uint8))
    return learner, Examples(pixels, torch.arange(count), torch.zeros(count).long(), torch.float32, CPU)


@pytest.mark.parametrize("count", [0, 1, CPU_EVAL_BATCH_SIZE, CPU_EVAL_BATCH_SIZE + 1, 5 * CPU_EVAL_BATCH_SIZE - 3])
def test_helped_predictions_equal_those_of_one_worker(count):
    learner, examples = learner_and_examples(count)
    model, queue = learner.initial_parameters(1), EvaluationQueue(1)
    with ThreadPoolExecutor(2) as pool:
        helpers = [pool.submit(queue.help) for _ in range(2)]
        with queue.evaluating():
            found = queue.predict(learner, model, examples)
        for helper in helpers:
            helper.result(timeout=60)
    assert torch.equal(found, learner.predict(model, examples))


def test_a_worker_without_a_client_computes_batches_of_another(monkeypatch):
    learner, examples = learner_and_examples(4 * CPU_EVAL_BATCH_SIZE)
    queue, threads, predict = EvaluationQueue(1), set(), learner.predict
    both = threading.Barrier(2)

    def recorded(model, batch):
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            both.wait(timeout=60)  # the first batch of each worker ends when both have one
        return predict(model, batch)

    monkeypatch.setattr(learner, "predict", recorded)
    with ThreadPoolExecutor(1) as pool:
        helper = pool.submit(queue.help)
        with queue.evaluating():
            queue.predict(learner, learner.initial_parameters(1), examples)
        helper.result(timeout=60)
    assert len(threads) == 2


def test_an_error_in_a_batch_is_raised_by_the_client_and_ends_helpers(monkeypatch):
    learner, examples = learner_and_examples(3 * CPU_EVAL_BATCH_SIZE)
    monkeypatch.setattr(learner, "predict", lambda *_: (_ for _ in ()).throw(ArithmeticError("broken")))
    queue = EvaluationQueue(1)
    with ThreadPoolExecutor(1) as pool:
        helper = pool.submit(queue.help)
        with pytest.raises(ArithmeticError, match="broken"), queue.evaluating():
            queue.predict(learner, learner.initial_parameters(1), examples)
        helper.result(timeout=60)


@pytest.mark.parametrize("name", ["fedavg", "fedproto", "student"])
def test_rows_do_not_depend_on_the_number_of_workers(name):
    sizes, train, public = (300, 40, 140), 9, 20
    dataset = images(sum(sizes) + train * len(sizes) + public)
    rest, shards = np.random.default_rng(0).permutation(len(dataset)), []
    for client, size in enumerate(sizes):
        own, test, rest = rest[:train], rest[train : train + size], rest[train + size :]
        shards.append(Shard(client, own, test))
    settings = DataSettings(dataset="toy", clients=len(sizes), public_size=public)
    toy, rows = Toy(dataset, Partition(settings, 0, tuple(shards), rest)), []
    for workers in (1, 2, 3):
        federation = toy.changed(workers=workers, batch_size=4).federation(METHODS[name]())
        with federation.worker_pool:
            rows.append([record.rows for record in run_rounds(federation, 2)])
    assert rows[0] == rows[1] == rows[2]
