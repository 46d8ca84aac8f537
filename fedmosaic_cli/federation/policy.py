"""What a site allows, whatever the coordinator plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from fedmosaic_cli.engine.messages import UploadLevel
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.label_messages import LabelUpload
from fedmosaic_cli.labels.privacy.privacy_report import delta_warning

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.engine.train_settings import TrainSettings

UPLOAD_LEVELS: tuple[UploadLevel, ...] = get_args(UploadLevel)
"""What a site may upload, in increasing order. Each kind of message part has a level (`engine.messages.Part`)."""
MetricsLevel = Literal["withheld", "rounded", "exact-unprotected"]
METRICS_LEVELS: tuple[MetricsLevel, ...] = get_args(MetricsLevel)
"""How metrics are sent, in increasing order of what they reveal."""


@dataclass(frozen=True)
class SitePolicy:
    """The rules of a site.

    Attributes:
        allow_upload: What the site may upload.
        max_epsilon: The largest total epsilon of all runs on the site's data, with `delta`. With it, everything that
            leaves the site has noise: metrics, digests and reasons of failures are withheld. None is no limit.
        delta: The delta of `max_epsilon`. It must be below one over the number of training examples.
        metrics: Whether losses, accuracies and other logged values leave the site: not at all, rounded, or as they are,
            from which a coordinator can reconstruct training examples.
        min_batch_size: The smallest batch size of a plan, unless metrics are withheld.
        min_examples: The smallest number of examples that a metric may average over.
        min_lr: The smallest learning rate of a plan. With a smaller one, losses are those of a model that the
            coordinator knows.
    """

    allow_upload: UploadLevel = "labels"
    max_epsilon: float | None = None
    delta: float = 1e-5
    metrics: MetricsLevel = "rounded"
    min_batch_size: int = 8
    min_examples: int = 20
    min_lr: float = 1e-6

    @property
    def metrics_level(self) -> MetricsLevel:
        """What happens to metrics. With a privacy budget no value without noise leaves the site."""
        return self.metrics if self.max_epsilon is None else "withheld"

    def check_config(self, config: RunConfig, client_id: int, num_examples: int) -> None:
        """Raise `RequestError` if the site of a client with `num_examples` training examples does not allow a plan."""
        allowed = UPLOAD_LEVELS[: UPLOAD_LEVELS.index(self.allow_upload) + 1]
        if any(part.level not in allowed for part in config.method.uploads.values()):
            info = config.method.info
            raise RequestError(
                f"{info.title} would send {info.exchanges}, and this site allows the upload of {self.allow_upload} "
                "only (--allow-upload): agree on another method, or allow more"
            )
        if self.metrics_level == "rounded":
            self._check_minima(config.train_settings_for(client_id), num_examples)
        if self.max_epsilon is not None:
            self._check_noise(config, num_examples)

    def limited_config(self, config: RunConfig) -> RunConfig:
        """Return the configuration with this site's epsilon as its limit, so that each round checks it."""
        if self.max_epsilon is None:
            return config
        limit = min(self.max_epsilon, config.privacy.max_epsilon or self.max_epsilon)
        return replace(config, privacy=config.privacy.model_copy(update={"max_epsilon": limit}))

    def _check_minima(self, train: TrainSettings, num_examples: int) -> None:
        """Refuse plans whose training losses would describe few examples, or a model that hardly changes."""
        batch_size = min(train.batch_size, num_examples)
        values = {
            "train.batch_size": (batch_size, self.min_batch_size),
            "train.lr": (train.lr, self.min_lr),
            "train.local_steps times train.batch_size": (
                train.steps_per_round(num_examples) * batch_size,
                self.min_examples,
            ),
        }
        for name, (value, minimum) in values.items():
            if value < minimum:
                raise RequestError(
                    f"{name} is {value:g}, and this site requires {minimum:g} because it sends metrics (site.json): "
                    f"increase {name}, or start the site with --metrics withheld"
                )

    def has_noise_only(self, config: RunConfig) -> bool:
        """Return whether each value that leaves the site in a run has noise that protects all of the site's data."""
        if self.metrics_level != "withheld":
            return False
        noise, uploads = config.noise, config.method.uploads
        has_noise = noise is not None and noise.unit == "client" and noise.changed_rows is None
        return not uploads or (has_noise and all(type(part) is LabelUpload for part in uploads.values()))

    def require_labels(self, num_labels: int, public_size: int) -> None:
        """Raise `RequestError` if metrics would average over the few public examples that a consensus labels."""
        minimum = min(self.min_examples, public_size)
        if self.metrics_level == "rounded" and 0 < num_labels < minimum:
            raise RequestError(
                f"the consensus has labels for {num_labels} public examples, and this site requires {minimum}, because "
                "it sends metrics (min_examples in site.json): use more clients, or start it with --metrics withheld"
            )

    def _check_noise(self, config: RunConfig, num_examples: int) -> None:
        noise = config.noise
        if noise is None:
            raise RequestError(
                "the plan has no noise, and this site has a privacy budget (--max-epsilon): set privacy.labels and "
                "privacy.epsilon"
            )
        if any(type(part) is not LabelUpload for part in config.method.uploads.values()):
            raise RequestError(
                f"{config.method.info.title} sends more than labels with noise, and this site has a privacy budget "
                "(--max-epsilon): agree on another method"
            )
        if noise.unit != "client" or noise.changed_rows is not None:
            raise RequestError(
                "the planned epsilon protects one record, and this site limits that of all its data (--max-epsilon): "
                "remove privacy.unit and privacy.changed_rows"
            )
        for delta in (noise.delta, self.delta):
            warning = delta_warning(delta, [num_examples])
            if warning:
                raise RequestError(f"{warning}: choose a smaller one, as this site has --max-epsilon")

    def require_budget(self, total_epsilon: float) -> None:
        """Raise `RequestError` if a total epsilon, that of earlier runs included, exceeds the site's limit."""
        if self.max_epsilon is not None and total_epsilon > self.max_epsilon:
            raise RequestError(
                f"a total epsilon of {total_epsilon:.6g} is planned, earlier runs included, and this site allows "
                f"{self.max_epsilon:g} (--max-epsilon): use a smaller privacy.epsilon, or fewer rounds"
            )
