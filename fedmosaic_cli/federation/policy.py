"""What a site lets out, whatever the coordinator plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.privacy.privacy_report import delta_warning

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig

UploadLevel = Literal["labels", "predictions", "models"]
# What may leave a site, from least to most; whoever lets models out has nothing against labels.
ALLOWED_UPLOADS: dict[str, frozenset[str]] = {
    "labels": frozenset({"opinion"}),
    "predictions": frozenset({"opinion", "logits"}),
    "models": frozenset({"opinion", "logits", "weights"}),
}


@dataclass(frozen=True)
class SitePolicy:
    """What the people at a site have agreed to: what may leave it, and how much its noise may let through in a run.

    `max_epsilon` is about all of the site's data, at a delta below one over its size.
    """

    sharing: UploadLevel = "labels"
    max_epsilon: float | None = None

    def check_config(self, config: RunConfig, num_examples: int) -> None:
        """Refuse a plan that asks for more of a client with so many `examples`."""
        more = set(config.method.uploads.values()) - ALLOWED_UPLOADS[self.sharing]
        if more:
            raise RequestError(
                f"{config.method.title} would send {config.method.travels}, and this site shares {self.sharing} "
                "(--share): agree on another method, or share more"
            )
        if self.max_epsilon is not None:
            self._check_privacy(config, self.max_epsilon, num_examples)

    def limited_config(self, config: RunConfig) -> RunConfig:
        """The plan with what this site allows as its limit: whatever was spent before counts, round by round."""
        if self.max_epsilon is None:
            return config
        least = min(self.max_epsilon, config.privacy.max_epsilon or self.max_epsilon)
        return replace(config, privacy=config.privacy.model_copy(update={"max_epsilon": least}))

    def _check_privacy(self, config: RunConfig, max_epsilon: float, num_examples: int) -> None:
        """Refuse noise that lets through more, or is measured in a way that makes it look like less."""
        noise = config.noise
        total = None if noise is None else noise.planned_epsilon(config.num_exchanges, config.data.public_size or 0)
        if noise is None or total is None or total > max_epsilon:
            planned = "no noise" if total is None else f"a total epsilon of {total:.6g}"
            raise RequestError(
                f"{planned} is planned, and this site allows {max_epsilon:g} (--max-epsilon): plan for less"
            )
        if noise.unit != "client" or noise.changed_rows is not None:
            raise RequestError(
                "the planned epsilon is that of a record, and this site allows one for all its data (--max-epsilon): "
                "leave privacy.unit and privacy.changed_rows out"
            )
        vague = delta_warning(noise.delta, [num_examples])
        if vague:
            raise RequestError(f"{vague}: choose a smaller one, as this site has --max-epsilon")
