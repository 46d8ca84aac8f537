"""What a client does with class shares of the public set: train a student, test it, and mix it with its own model.

Base class of `methods.student`, where the shares come from votes, and of `methods.oracle`, where they are the truth.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from fedmosaic_cli.cotraining.crossfit import stratified_folds
from fedmosaic_cli.cotraining.label_noise import denoised_mean
from fedmosaic_cli.cotraining.logit_adjustment import shift_to_client
from fedmosaic_cli.cotraining.mixture import GATE_RULES, VIEWS, GateName, View, choose_mixture
from fedmosaic_cli.engine import params
from fedmosaic_cli.engine.context import OPTIMIZER_SUFFIX, Training
from fedmosaic_cli.engine.losses import PublicSoftLabelLoss, SoftLabelLoss
from fedmosaic_cli.engine.method import Costs, Method, Needs, UsedIf, hyperparameters
from fedmosaic_cli.labels.certificates import MAX_EXAMPLES
from fedmosaic_cli.methods.mixture_model import SHIFT_ENTRY, is_mixture, make_mixture, mix, predict_mixture

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedmosaic_cli.engine.context import (
        Client,
        FederationInfo,
        Message,
        Parameters,
        Predictor,
        ReceivedMessage,
        Server,
    )
    from fedmosaic_cli.engine.method import RunFacts

# Keys of models and data in the state of a client, besides its own model.
FOLDS_KEY, FOLD_PREFIX, STEPS_KEY, MIXTURE_KEY, DISTILLED_KEY = "folds", "fold", "steps", "mixture", "distilled"
STUDENT_KEY = STUDENT_NETWORK = "student"
NUM_LR_PHASES = 20
"""The learning rate of the student falls in this number of phases, along half a cosine."""


def same_network(network: nn.Module, num_classes: int) -> nn.Module:
    """Return the client's network, which is also that of the student."""
    return network


@hyperparameters
class StudentMixture(Method):
    """Local training, then a mixture of the client's own model with a student of class shares.

    The student is trained on the public set, once for all clients with the same network. A client uses it in two views:
    with a correction of its logits for the client's class frequencies, by Bayes' rule, and fine-tuned on the client's
    data. A cross-fitted test on the client's training data chooses a mixture, or keeps the client's own model.

    Attributes:
        gate: The mixtures that the test compares with the client's own model. `safe` gives half of the
            weight to the student if this gains 1.5 standard errors, and three quarters if that gains another 2; `bold`
            lets the weight vary and requires one standard error; `light` is `bold` without
            fine-tuning; `off` takes half of each without a test.
        steps: Steps of the student.
        batch_size: Batch size of the student.
        lr: Initial learning rate of the student, which uses Adam. None is that of the run.
        finetune_steps: Steps of fine-tuning. None is half of the steps that the client's own model took, or a tenth of
            `steps` if it took none, as a scikit-learn model does.
        gate_folds: Folds of the cross-fitted test.
        gate_prior_var: Prior variance of the gain, which matters for few examples.
        distil: Train one network on the client's data and on the predictions of the mixture for the public set.
    """

    gate: GateName = "safe"
    steps: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    batch_size: Annotated[int, Field(ge=2, le=1_000_000)] = 50
    lr: Annotated[float, Field(gt=0, le=1e30)] | None = None
    finetune_steps: Annotated[int | None, Field(ge=0, le=1_000_000), UsedIf("gate", "safe", "bold", "off")] = None
    gate_folds: Annotated[int, Field(ge=2, le=20), UsedIf("gate", "safe", "bold", "light")] = 3
    gate_prior_var: Annotated[float, Field(ge=0, le=1e30), UsedIf("gate", "safe", "bold", "light")] = 0.25
    distil: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(
            public_set=True,
            learners="anything",
            public_training=True,
            total_rounds=True,
            broadcast_to_evaluate=True,
            networks={STUDENT_NETWORK: same_network},
        )

    def init_client(self, client: Client, ctx: FederationInfo) -> None:
        super().init_client(client, ctx)
        client.state[STEPS_KEY] = 0
        if self.gate != "off" and len(client.train_labels) >= 2 * self.gate_folds:
            client.state[FOLDS_KEY] = stratified_folds(client.train_labels, self.gate_folds, client.rng("folds"))
            for fold in range(self.gate_folds):
                client.state[f"{FOLD_PREFIX}-{fold}"] = client.initial_model

    def local_round(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Message:
        """Train the client's own model as in Local and, until `finalize`, one model without each fold."""
        folds = range(self.gate_folds if FOLDS_KEY in client.state else 0)
        trainings = [Training(f"{FOLD_PREFIX}-{fold}", examples=other_folds(client, fold)) for fold in folds]
        own, *_ = client.train_all([Training("model"), *trainings])
        if STEPS_KEY in client.state:
            client.state[STEPS_KEY] += own.num_steps
        return {}

    def finalize(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> None:
        """Train the student, test whether it helps, and store the mixture if it does."""
        shares = self.student_targets(client, received, ctx)
        if shares is not None:
            noise = self.label_noise(ctx)
            student = client.shared_result("student", lambda trainer: self.train_student(trainer, shares, noise=noise))
            self.store_mixture(client, student, denoised_mean(shares, noise))
        client.log(gate_on=int(MIXTURE_KEY in client.state))
        for key in [key for key in client.state if key.split(".")[0] in self.temporary_keys()]:
            del client.state[key]

    @abstractmethod
    def student_targets(self, client: Client, received: ReceivedMessage, ctx: FederationInfo) -> Tensor | None:
        """Return the targets of the student [examples, classes]; None if the client keeps its own model."""

    def label_noise(self, ctx: FederationInfo) -> float:
        """Return the fraction of uniform labels in the targets; see `cotraining.label_noise`."""
        return 0.0

    def temporary_keys(self) -> set[str]:
        """Return the keys of the client's state that are not needed after the last round."""
        return {STEPS_KEY, FOLDS_KEY, DISTILLED_KEY, *(f"{FOLD_PREFIX}-{fold}" for fold in range(self.gate_folds))}

    def train_student(
        self, trainer: Server, shares: Tensor, examples: Tensor | None = None, noise: float = 0.0
    ) -> Parameters:
        """Return a student of the shares of all public examples, or of some of them."""
        term = self.student_loss(shares if examples is None else shares[examples], noise)
        trainer.state[STUDENT_KEY] = trainer.initial_network(STUDENT_NETWORK)
        for phase in range(NUM_LR_PHASES):
            trainer.train(
                STUDENT_KEY,
                [term],
                examples=examples,
                steps=self.steps * (phase + 1) // NUM_LR_PHASES - self.steps * phase // NUM_LR_PHASES,
                batch_size=self.batch_size,
                lr=(self.lr or trainer.lr) * (1 + math.cos(math.pi * phase / NUM_LR_PHASES)) / 2,
                optimizer="adam",
                stream=f"student-{phase}",
                network=STUDENT_NETWORK,
            )
        student: Parameters = trainer.state[STUDENT_KEY]
        return student

    def student_loss(self, targets: Tensor, noise: float) -> SoftLabelLoss:
        """Return the loss of a student."""
        return SoftLabelLoss(targets, 1.0)

    def store_mixture(self, client: Client, student: Parameters, shares: Tensor) -> None:
        """Choose a mixture by the gate, and store it unless the client keeps its own model."""
        weights: tuple[float, ...] | None = GATE_RULES[self.gate].candidates[0] if self.gate == "off" else None
        if FOLDS_KEY in client.state:
            views = self.held_out_views(client, student, shares)
            choice = choose_mixture(views, client.train_labels, GATE_RULES[self.gate], self.gate_prior_var)
            weights, gain = choice.weights, choice.decision
            client.log(gate_gain=gain.gain, gate_error=gain.standard_error)
            client.log(gate_accuracy_gain=choice.accuracy_gain, gate_accuracy_error=choice.accuracy_error)
            client.log(gate_accuracy_local=choice.local_accuracy)
        if weights is None:
            return
        mixture = make_mixture(
            weights,
            shift_to_client(client.class_counts, shares),
            {
                "local": lambda: client.state["model"],
                "corrected": lambda: student,
                "tuned": lambda: self.finetuned(client, student),
            },
        )
        client.log(**{f"weight_{view}": weight for view, weight in zip(VIEWS, weights, strict=True)})
        client.state[MIXTURE_KEY] = self.distilled(client, student, mixture) if self.distil else params.clone(mixture)

    def held_out_views(self, client: Client, student: Parameters, shares: Tensor) -> dict[View, Tensor]:
        """Return the predicted distributions of all views for every training example, by models without its fold.

        The student has learnt from the client's votes, whose model has seen the example; with many clients this is a
        small part of the votes.
        """
        import torch

        labels, num_classes = client.train_labels, shares.shape[1]
        student_logits = client.predict_private(student, STUDENT_NETWORK)
        views: dict[View, Tensor] = {
            view: torch.empty(len(labels), num_classes, dtype=torch.float64)
            for view in VIEWS
            if view != "tuned" or GATE_RULES[self.gate].uses_tuned
        }
        for fold in range(self.gate_folds):
            held_out, seen = client.state[FOLDS_KEY] == fold, other_folds(client, fold)
            shift = shift_to_client(torch.bincount(labels[seen], minlength=num_classes), shares)
            logits = {
                "local": client.predict_private(client.state[f"{FOLD_PREFIX}-{fold}"]),
                "corrected": student_logits + shift.to(student_logits),
            }
            if "tuned" in views:
                tuned = self.finetuned(client, student, seen, f"finetune-{fold}")
                logits["tuned"] = client.predict_private(tuned, STUDENT_NETWORK)
            for view, values in views.items():
                values[held_out] = logits[view].cpu().double().softmax(dim=1)[held_out]
        return views

    def finetuned(
        self, client: Client, student: Parameters, examples: Tensor | None = None, stream: str = "finetune"
    ) -> Parameters:
        """Return a copy of the student that is fine-tuned on the client's data with half the learning rate."""
        taken = client.state[STEPS_KEY]
        default = taken // 2 if taken else self.steps // 10
        steps = default if self.finetune_steps is None else self.finetune_steps
        # The stream is also the key, so that no training continues with the optimizer state of another one.
        client.state[stream] = params.clone(student)
        client.train(stream, examples=examples, steps=steps, lr=client.lr / 2, stream=stream, network=STUDENT_NETWORK)
        client.state.pop(stream + OPTIMIZER_SUFFIX, None)
        tuned: Parameters = client.state.pop(stream)
        return tuned

    def distilled(self, client: Client, student: Parameters, mixture: Parameters) -> Parameters:
        """Return a mixture of one network: the student, trained further on the client's data and on the predictions of
        `mixture` for the public set."""
        targets = mix(
            mixture, lambda view, model: client.predict_public(model, None if view == "local" else STUDENT_NETWORK)
        )
        client.state[DISTILLED_KEY] = params.clone(student)
        client.train(
            DISTILLED_KEY,
            [PublicSoftLabelLoss(targets.exp(), 1.0)],
            steps=self.steps,
            batch_size=self.batch_size,
            stream=DISTILLED_KEY,
            network=STUDENT_NETWORK,
        )
        return make_mixture((0.0, 0.0, 1.0), mixture[SHIFT_ENTRY], {"tuned": lambda: client.state.pop(DISTILLED_KEY)})

    def personal_model(self, client: Client, received: ReceivedMessage) -> Parameters:
        model: Parameters = client.state.get(MIXTURE_KEY) or client.state["model"]
        return model

    def predict(self, model: Parameters, predictor: Predictor, examples: Any) -> Tensor:
        if not is_mixture(model):
            return predictor.predict(model, examples)
        return predict_mixture(model, predictor, examples, STUDENT_NETWORK)

    def warnings(self, facts: RunFacts) -> list[str]:
        title, warnings = self.info.title, super().warnings(facts)
        if self.lr is None and facts.optimizer != "adam":
            warnings.append(
                f"{title} trains a student by Adam with the learning rate {facts.learning_rate:g}, which is meant for "
                f"{facts.optimizer} (train.lr): set methods.{self.info.name}.lr, e.g. to 0.002"
            )
        if (facts.examples_per_client or 0) > MAX_EXAMPLES:
            warnings.append(
                f"clients have {facts.examples_per_client} training examples: above about {MAX_EXAMPLES}, gains of "
                f"{title} are small unless the clients' data are similar"
            )
        return warnings

    def costs(self, ctx: FederationInfo) -> Costs:
        folds = 0 if self.gate == "off" else self.gate_folds
        num_tuned = 0 if self.gate == "light" else 1 + folds
        local_rounds = ctx.num_rounds * (1 + folds) + math.ceil(num_tuned * ctx.num_rounds / 2)
        note = f"each distilled network of {self.info.title} takes {self.steps} steps of a private and a public batch"
        return Costs(
            state_models=max(1 + folds, 4),
            trained_models=1 + folds,
            local_rounds=local_rounds,
            note=note if self.distil else "",
        )


def other_folds(client: Client, fold: int) -> Tensor:
    """Return the positions of the training examples outside a fold."""
    positions: Tensor = (client.state[FOLDS_KEY] != fold).nonzero()[:, 0]
    return positions
