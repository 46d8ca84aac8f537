"""What a site allows, whatever the coordinator plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, get_args

from fedmosaic_cli.engine.messages import UploadLevel
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.privacy.privacy_report import delta_warning

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig

UPLOAD_LEVELS: tuple[UploadLevel, ...] = get_args(UploadLevel)
"""What a site may upload, in increasing order. Each kind of message part has a level (`engine.messages.Part`)."""


@dataclass(frozen=True)
class SitePolicy:
    """The rules of a site.

    Attributes:
        sharing: What the site may upload.
        max_epsilon: The largest total epsilon that a run may spend. It refers to all data of the site, with a delta
            below one over its number of training examples. None is no limit.
    """

    sharing: UploadLevel = "labels"
    max_epsilon: float | None = None

    def check_config(self, config: RunConfig, num_examples: int, num_classes: int | None = None) -> None:
        """Raise `RequestError` if a run uploads or spends more than a site with `num_examples` allows."""
        allowed = UPLOAD_LEVELS[: UPLOAD_LEVELS.index(self.sharing) + 1]
        if any(part.level not in allowed for part in config.method.uploads.values()):
            info = config.method.info
            raise RequestError(
                f"{info.title} would send {info.exchanges}, and this site shares {self.sharing} "
                "(--allow-upload): agree on another method, or allow more"
            )
        if self.max_epsilon is not None:
            self._check_privacy(config, self.max_epsilon, num_examples, num_classes)

    def limited_config(self, config: RunConfig) -> RunConfig:
        """Return the configuration with this site's epsilon as its limit, so that each round checks it."""
        if self.max_epsilon is None:
            return config
        limit = min(self.max_epsilon, config.privacy.max_epsilon or self.max_epsilon)
        return replace(config, privacy=config.privacy.model_copy(update={"max_epsilon": limit}))

    def _check_privacy(self, config: RunConfig, max_epsilon: float, num_examples: int, num_classes: int | None) -> None:
        noise, total = config.noise, config.planned_epsilon(num_classes)
        if noise is None or total is None or total > max_epsilon:
            planned = "no noise" if total is None else f"a total epsilon of {total:.6g}"
            raise RequestError(
                f"{planned} is planned, and this site allows {max_epsilon:g} (--max-epsilon): plan for less"
            )
        if noise.unit != "client" or noise.changed_rows is not None:
            raise RequestError(
                "the planned epsilon protects one record, and this site limits that of all its data (--max-epsilon): "
                "remove privacy.unit and privacy.changed_rows"
            )
        warning = delta_warning(noise.delta, [num_examples])
        if warning:
            raise RequestError(f"{warning}: choose a smaller one, as this site has --max-epsilon")
