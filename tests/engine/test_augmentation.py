"""Data augmentation: which images training sees, where its draws come from, and what it does not change."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedmosaic_cli.engine import client as client_module
from fedmosaic_cli.engine import examples as examples_module
from fedmosaic_cli.engine.augmentation import augment_images, crop_padding, draw_windows
from fedmosaic_cli.engine.examples import Examples
from fedmosaic_cli.engine.learner import TrainingLosses
from fedmosaic_cli.engine.losses import PseudoLabelLoss, ToDeviceMixin
from fedmosaic_cli.engine.rounds import evaluate_round, run_rounds
from fedmosaic_cli.method_checks.checks import MethodChecks
from fedmosaic_cli.methods.fedavg import FedAvg
from fedmosaic_cli.methods.fedct import FedCT
from fedmosaic_cli.methods.feddf import FedDF
from fedmosaic_cli.methods.local import Centralized, Local
from fedmosaic_cli.methods.perfedavg import PerFedAvg
from fedmosaic_cli.models.model_settings import ModelSettings
from fedmosaic_cli.seeds import derive_seed
from tests.engine.test_execution import META, ScalarReads
from tests.engine.test_stacked import check
from tests.test_contract import VARIANTS
from tests.toys import CPU, TOYS, Toy, make_toy, models, personal_models, run_toy, same

MODES = ["flip", "crop", "crop-flip"]
SHAPES = [(2, 2, 1), (5, 4, 2), (8, 8, 1), (12, 20, 3), (32, 32, 3), (40, 28, 3)]
PUBLIC_TERM = PseudoLabelLoss(torch.zeros(7, dtype=torch.int64), 0.5)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_images(*shape: int) -> torch.Tensor:
    return torch.randint(1, 256, shape, dtype=torch.uint8, generator=generator())


def decoded(windows: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Return for each window whether the image is flipped, and its first row and column in the padded image."""
    shape = (2, height + 2 * crop_padding(height), width + 2 * crop_padding(width))
    return torch.stack(torch.unravel_index(windows, shape), dim=-1)


def slowly_augmented(image: torch.Tensor, window: torch.Tensor) -> torch.Tensor:
    """Return one image [height, width, channels], flipped and cropped pixel by pixel."""
    height, width, _ = image.shape
    is_flipped, first_row, first_column = decoded(window, height, width).tolist()
    result = torch.zeros_like(image)
    for row, column in product(range(height), range(width)):
        y = row + first_row - crop_padding(height)
        x = column + first_column - crop_padding(width)
        if 0 <= y < height and 0 <= x < width:
            result[row, column] = image[y, width - 1 - x if is_flipped else x]
    return result


def toy_with_pixels(toy: Toy, side: int = 8, channels: int = 3, **model: object) -> Toy:
    """Return a toy with random images of this size and, if given, another network for all clients."""
    pixels = np.random.default_rng(3).integers(0, 256, (len(toy.dataset), side, side, channels)).astype(np.uint8)
    pixels //= 2
    pixels += (60 * toy.dataset.labels[:, None, None, None]).astype(np.uint8)
    clients = range(len(toy.partition.shards))
    return toy.changed(
        dataset=replace(toy.dataset, images=pixels),
        models=dict.fromkeys(clients, ModelSettings(**model)) if model else {},
    )


class TestImages:
    @pytest.mark.parametrize(
        ("size", "padding"), [(1, 1), (2, 1), (8, 1), (12, 2), (16, 2), (28, 4), (31, 4), (32, 4), (64, 4), (224, 4)]
    )
    def test_padding_is_four_pixels_and_less_for_small_images(self, size, padding):
        assert crop_padding(size) == padding

    @pytest.mark.parametrize("shape", SHAPES)
    def test_flipping_twice_gives_the_original(self, shape):
        images = random_images(6, *shape)
        height, width, _ = shape
        row_length = width + 2 * crop_padding(width)
        window = (height + 3 * crop_padding(height)) * row_length + crop_padding(width)
        windows = torch.full((6,), window)
        flipped = augment_images(images, windows)
        assert torch.equal(flipped, images.flip(2))
        assert not torch.equal(flipped, images)
        assert torch.equal(augment_images(flipped, windows), images)

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_outputs_are_shifted_and_padded_with_black(self, shape, mode):
        images = random_images(40, *shape)
        windows = draw_windows(mode, 40, shape[:2], generator(1))
        expected = torch.stack([slowly_augmented(*pair) for pair in zip(images, windows, strict=True)])
        assert torch.equal(augment_images(images, windows), expected)
        assert not torch.equal(expected, images)

    def test_batches_of_several_clients_equal_separate_batches(self):
        images, windows = random_images(7, 3, 8, 6, 2), draw_windows("crop-flip", 21, (8, 6), generator())
        windows = windows.view(7, 3)
        together = augment_images(images, windows)
        for client in range(3):
            assert torch.equal(together[:, client], augment_images(images[:, client], windows[:, client]))

    def test_inputs_keep_their_memory_order(self):
        private = toy_with_pixels(TOYS["even"]).federation(Local()).state.clients[0].private
        windows = draw_windows("crop-flip", 4, (8, 8), generator())
        plain, augmented = (private.normalised_images(private.indices[:4], w) for w in (None, windows))
        assert augmented.stride() == plain.stride()
        assert augmented.is_contiguous(memory_format=torch.channels_last)
        assert augmented.min() >= -1
        assert not torch.equal(plain, augmented)

    def test_images_are_augmented_on_the_device_of_the_network(self):
        private = TOYS["even"].federation(Local()).state.clients[0].private
        remote = replace(private, device=META)
        windows = draw_windows("crop-flip", 3, (2, 2), generator())
        with pytest.raises(RuntimeError, match="device"):
            remote.normalised_images(private.indices[:3], windows)
        assert remote.normalised_images(private.indices[:3], windows.to(META)).shape == (3, 1, 2, 2)


class TestDraws:
    @pytest.mark.parametrize("mode", MODES)
    def test_all_flips_and_crops_are_equally_likely(self, mode):
        windows = draw_windows(mode, 40_000, (32, 12), generator())
        assert (windows.dtype, windows.shape) == (torch.int64, (40_000,))
        draws = decoded(windows, 32, 12)
        values = {
            0: range(2) if "flip" in mode else [0],
            1: range(9) if "crop" in mode else [4],
            2: range(5) if "crop" in mode else [2],
        }
        for column, allowed in values.items():
            counts = Counter(draws[:, column].tolist())
            assert sorted(counts) == list(allowed)
            assert min(counts.values()) > 0.9 * 40_000 / len(allowed)
        if mode == "crop-flip":
            assert len(set(map(tuple, draws.tolist()))) == 2 * 9 * 5

    def test_modes_share_their_draws_and_a_longer_training_continues_a_shorter_one(self):
        flip, crop, both = (decoded(draw_windows(mode, 20, (8, 8), generator()), 8, 8) for mode in MODES)
        assert torch.equal(both[:, :1], flip[:, :1])
        assert torch.equal(both[:, 1:], crop[:, 1:])
        assert torch.equal(decoded(draw_windows("crop-flip", 50, (8, 8), generator())[:20], 8, 8), both)

    @staticmethod
    def schedule(client, monkeypatch, terms=(), round_number=1, **options):
        """Return the batches of a training, without the training."""
        tasks = []

        def fit(parameters, optimizer_state, task):
            tasks.append(task)
            return TrainingLosses(1.0, [1.0] * len(terms), 1)

        monkeypatch.setattr(client.learner, "fit", fit, raising=False)
        client.begin_round(round_number)
        client.train("model", terms, **options)
        return tasks[0].schedule

    def private_draws(self, monkeypatch, client=0, seed=0, **options):
        federation = TOYS["even"].changed(augment="crop-flip", local_steps=6).federation(Local(), seed)
        schedule = self.schedule(federation.state.clients[client], monkeypatch, **options)
        return torch.cat(schedule.private_batches)[:, 1]

    def test_draws_depend_on_client_round_stream_and_seed(self, monkeypatch):
        ours = self.private_draws(monkeypatch)
        assert ours.shape == (24,)
        assert torch.equal(self.private_draws(monkeypatch), ours)
        for change in ({"client": 1}, {"round_number": 2}, {"stream": "other"}, {"seed": 1}):
            assert not torch.equal(self.private_draws(monkeypatch, **change), ours), change

    def test_draws_come_from_the_named_stream(self, monkeypatch):
        ours = self.private_draws(monkeypatch, client=2, seed=5, round_number=3, stream="other")
        stream = generator(derive_seed(5, "augment", "other", 2, 3))
        assert torch.equal(ours, draw_windows("crop-flip", 24, (2, 2), stream))

    def test_private_batches_do_not_depend_on_public_terms(self, monkeypatch):
        client = TOYS["even"].changed(augment="crop-flip").federation(Local()).state.clients[0]
        without = self.schedule(client, monkeypatch)
        with_public = self.schedule(client, monkeypatch, (PUBLIC_TERM,))
        assert without.public_batches == []
        assert len(with_public.public_batches) == len(without.private_batches) == 3
        for ours, theirs in zip(without.private_batches, with_public.private_batches, strict=True):
            assert torch.equal(ours, theirs)
        private, public = (torch.cat(b)[:, 1] for b in (with_public.private_batches, with_public.public_batches))
        assert not torch.equal(private, public), "two independent streams"

    def test_the_order_of_examples_is_that_of_a_run_without_augmentation(self, monkeypatch):
        plain, augmented = (
            self.schedule(toy.federation(Local()).state.clients[0], monkeypatch, (PUBLIC_TERM,))
            for toy in (TOYS["epochs"], TOYS["epochs"].changed(augment="crop"))
        )
        for name in ("private_batches", "public_batches"):
            for ours, theirs in zip(getattr(plain, name), getattr(augmented, name), strict=True):
                assert torch.equal(ours, theirs[:, 0])

    @pytest.mark.parametrize("execution", ["threads", "stacked"])
    def test_without_augmentation_nothing_is_drawn_or_changed(self, execution, monkeypatch):
        expected = models(FedCT(), TOYS["uneven"].changed(execution=execution))
        forbid_augmentation(monkeypatch)
        monkeypatch.setattr(client_module.augmentation, "draw_windows", forbidden)
        assert same(models(FedCT(), TOYS["uneven"].changed(execution=execution, augment="none")), expected)
        with pytest.raises(AssertionError, match="augmentation is used"):
            models(FedCT(), TOYS["uneven"].changed(execution=execution, augment="flip"))


def forbidden(*arguments):
    raise AssertionError("augmentation is used")


def forbid_augmentation(monkeypatch):
    monkeypatch.setattr(examples_module, "augment_images", forbidden)


@dataclass(frozen=True)
class InputNorm(ToDeviceMixin):
    """A term that calls the network on the images of the private batch."""

    seen: ClassVar[list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = []
    weight: float = 0.0
    log_key: ClassVar[str] = "loss_norm"
    uses_public: ClassVar[bool] = False
    uses_module: ClassVar[bool] = True

    def loss(self, outputs):
        self.seen.append((outputs.private_inputs, outputs.private_logits, outputs.module(outputs.private_inputs)))
        return outputs.private_logits.sum()


class TestWhereItApplies:
    def augmented_client(self, method=Local(), toy=TOYS["even"]):  # noqa: B008 - methods are immutable
        federation = toy.changed(augment="crop-flip").federation(method)
        client = federation.state.clients[0]
        client.begin_round(1)
        return client

    def test_predictions_statistics_and_evaluation_are_not_augmented(self, monkeypatch, with_batch_norm):
        toy = TOYS["even"].changed(augment="crop-flip", bn_buffers="drop")
        federation = toy.federation(FedAvg())
        with federation.worker_pool:
            next(run_rounds(federation, 1))
            forbid_augmentation(monkeypatch)
            client = federation.state.clients[0]
            model = personal_models(federation)[0]
            client.predict_private(model)
            client.predict_public(model)
            client.predict_validation(model)
            client.private_features(model)
            client.private_loss(model)
            client.running_statistics(model)
            evaluate_round(federation, {})
            with pytest.raises(AssertionError, match="augmentation is used"):
                list(run_rounds(federation, 2))

    @pytest.mark.parametrize("use", ["train", "steps", "gradient"])
    def test_training_steps_and_gradients_are_augmented(self, use, monkeypatch):
        client = self.augmented_client()
        forbid_augmentation(monkeypatch)
        uses = {
            "train": lambda: client.train("model"),
            "steps": lambda: next(client.steps("inner")).gradient(client.state["model"], "inner"),
            "gradient": lambda: client.gradient(client.state["model"], "adaptation"),
        }
        with pytest.raises(AssertionError, match="augmentation is used"):
            uses[use]()

    @pytest.mark.parametrize("with_public", [False, True])
    @pytest.mark.parametrize("execution", ["threads", "stacked"])
    @pytest.mark.parametrize("network", ["plain", "batch norm"])
    def test_private_and_public_batches_are_augmented(self, with_public, execution, network, request, monkeypatch):
        if network == "batch norm":
            request.getfixturevalue("with_batch_norm")
        counts = Counter()

        def count(pixels, windows):
            counts["images"] += windows.numel()
            return augment_images(pixels, windows)

        monkeypatch.setattr(examples_module, "augment_images", count)
        toy = TOYS["even"].changed(augment="flip", execution=execution)
        run_toy(FedCT() if with_public else Local(), toy, rounds=2)
        # 3 clients, 3 steps, batches of 4; public batches in the second round only.
        assert counts["images"] == 3 * 3 * 4 * (3 if with_public else 2)

    @pytest.mark.parametrize("method", [FedDF(steps=2), Centralized()], ids=["server", "centralized"])
    def test_server_and_centralized_training_are_augmented(self, method, monkeypatch):
        federation = TOYS["even"].changed(augment="crop-flip").federation(method)
        trainer = federation.state.server.worker if isinstance(method, FedDF) else federation.state.clients[0]
        trainer.begin_round(1)
        trainer.state["student"] = trainer.initial_model
        forbid_augmentation(monkeypatch)
        with pytest.raises(AssertionError, match="augmentation is used"):
            trainer.train("student")

    def test_gradient_of_a_batch_is_that_of_its_augmented_images(self):
        client = self.augmented_client(toy=toy_with_pixels(TOYS["even"]))
        model = client.state["model"]
        order = torch.randperm(8, generator=generator(derive_seed(0, "adaptation", 0, 1)))[:4]
        stream = generator(derive_seed(0, "augment", "adaptation", 0, 1))
        windows = draw_windows("crop-flip", 4, (8, 8), stream)
        pixels = client.private.images[client.private.indices[order]]
        images = torch.stack([slowly_augmented(*pair) for pair in zip(pixels, windows, strict=True)])
        inputs = images.movedim(-1, 1).double() / 127.5 - 1
        module = client.learner.bound_module(model).train()
        loss = torch.nn.functional.cross_entropy(module(inputs), client.private.labels[order])
        expected = dict(
            zip(model, torch.autograd.grad(loss, [dict(module.named_parameters())[n] for n in model]), strict=True)
        )
        actual = client.gradient(model, "adaptation")
        assert all(torch.allclose(actual[name], expected[name], rtol=0, atol=1e-12) for name in model)

    def test_terms_that_call_the_network_get_the_images_of_the_step(self):
        client = self.augmented_client()
        InputNorm.seen.clear()
        client.train("model", [InputNorm()])
        assert len(InputNorm.seen) == 3
        for _, logits, again in InputNorm.seen:
            assert torch.equal(logits, again)

    def test_step_does_not_synchronise_with_the_device(self):
        images, windows = random_images(5, 8, 8, 3), draw_windows("crop-flip", 5, (8, 8), generator())
        with ScalarReads() as mode:
            augment_images(images, windows)
        assert mode.count == 0

    def test_adaptation_of_perfedavg_is_the_same_in_every_evaluation(self):
        federation = run_toy(PerFedAvg(alpha=0.5), TOYS["even"].changed(augment="crop-flip"))
        with federation.worker_pool:
            assert same(*(list(personal_models(federation).values()) for _ in range(2)))


class TestExecution:
    @pytest.mark.parametrize("method", VARIANTS.values(), ids=VARIANTS)
    def test_stacked_training_equals_separate_training(self, method):
        method = replace(method, steps=3) if isinstance(method, FedDF) else method
        toy = TOYS["uneven"].changed(augment="crop-flip")
        check(method, toy)
        assert not same(models(method, toy, 2), models(method, TOYS["uneven"], 2))

    @pytest.mark.usefixtures("with_batch_norm")
    @pytest.mark.parametrize("method", [FedCT(), PerFedAvg()], ids=["fedct", "perfedavg"])
    def test_batches_without_statistics_are_skipped_with_their_windows(self, method):
        toy = make_toy([5, 1, 9]).changed(local_steps=None, augment="crop-flip", optimizer="sgd", momentum=0.5)
        check(method, toy)

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("name", ["cnn", "cnn-bn", "mlp"])
    def test_networks_on_images_agree(self, name, mode):
        model = {"name": "mlp", "hidden": (6,)} if name == "mlp" else {"name": name, "width": 1 / 16}
        toy = toy_with_pixels(TOYS["uneven"], **model).changed(augment=mode, optimizer="sgd")
        check(FedCT(), toy)

    def test_both_executions_see_the_same_images(self, monkeypatch):
        toy = toy_with_pixels(TOYS["even"]).changed(augment="crop-flip")
        seen = {}
        for execution in ("threads", "stacked"):
            seen[execution] = record_inputs(toy.changed(execution=execution), monkeypatch)
        assert (len(seen["threads"]), len(seen["stacked"])) == (9, 3)
        for number, inputs in enumerate(seen["threads"]):
            client, step = divmod(number, 3)
            assert torch.equal(inputs, seen["stacked"][step][:, client])

    def test_number_of_workers_does_not_matter(self):
        toy = TOYS["uneven"].changed(augment="crop-flip")
        assert same(models(FedCT(), toy), models(FedCT(), toy.changed(workers=3)))


def record_inputs(toy, monkeypatch):
    """Return the inputs of the training steps of one round of Local."""
    inputs = []
    original = Examples.normalised_images

    def record(self, image_indices, windows=None):
        images = original(self, image_indices, windows)
        if windows is not None:
            inputs.append(images)
        return images

    with monkeypatch.context() as patch:
        patch.setattr(Examples, "normalised_images", record)
        run_toy(Local(), toy, rounds=1)
    assert all(images.device == CPU for images in inputs)
    return inputs


@pytest.fixture(params=["fedmosaic", "perfedavg", "feddf", "fedphp"])
def checks(request, tmp_path) -> MethodChecks:
    """Return the checks of `fedmosaic check-method` with augmentation, on images of 8x8 pixels."""
    assignments = ("train.augment=crop-flip", "methods.feddf.steps=3", "methods.fedmosaic.warmup_rounds=1")
    own = [a for a in assignments if not a.startswith("methods.") or request.param in a]
    return MethodChecks(request.param, tmp_path, tuple(own))


def test_remote_sites_give_the_same_bytes(checks):
    checks.check_sites()


def test_a_resumed_run_continues_to_the_same_bytes(checks):
    checks.check_resume()
