"""A run at a site: its plan, the state of the client, and what is stored of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedmosaic_cli.config.run_config import RESUME_SAFE_KEYS
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.labels.label_messages import LabelUpload, LabelVotes
from fedmosaic_cli.labels.privacy.privatize import privatize
from fedmosaic_cli.runner.checkpoint_state import capture_state
from fedmosaic_cli.runner.environment import package_versions
from fedmosaic_cli.storage import checkpoints
from fedmosaic_cli.storage.files import read_checksummed_json, to_checksummed_json, write_atomic

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.engine.client import InProcessClient
    from fedmosaic_cli.engine.context import Message
    from fedmosaic_cli.engine.federation import Federation
    from fedmosaic_cli.federation.policy import MetricsLevel
    from fedmosaic_cli.storage.runs import RunDirectory

RESPONSE_FILE, METRICS_LEVEL_FILE, EVALUATION_FILE = "response.bin", "level.txt", "evaluation.json"
"""Files in a checkpoint: the response of its round and the level at which it was filtered. `EVALUATION_FILE` is in the
directory of the run."""


@dataclass(frozen=True)
class StoredResponse:
    """The response of a finished round, and the level at which its metrics were filtered."""

    data: bytes
    metrics_level: MetricsLevel


@dataclass
class SiteRun:
    """A run that the site takes part in."""

    run_id: str
    config: RunConfig
    federation: Federation
    files: RunDirectory

    @property
    def client(self) -> InProcessClient:
        client: InProcessClient = self.federation.state.clients[0]
        return client

    @property
    def last_round(self) -> int:
        return self.federation.state.finished

    def stored_response(self, round_number: int) -> StoredResponse | None:
        """Return the stored response of a round, or None if its checkpoint was removed."""
        paths = {path.name: path for path in checkpoints.list_checkpoints(self.files.checkpoints_dir)}
        path = paths.get(f"{checkpoints.CHECKPOINT_PREFIX}{round_number:05d}")
        if path is None:
            return None
        logs = checkpoints.read_checkpoint(path).logs
        return StoredResponse(logs[RESPONSE_FILE], cast("MetricsLevel", logs[METRICS_LEVEL_FILE].decode()))

    @property
    def steps_per_round(self) -> int:
        """The planned number of training steps per round, with those of additional models. It depends on no labels."""
        num_rounds, train = self.config.train.rounds, self.config.train_settings_for(self.client.id)
        local_rounds = self.config.method.costs(self.federation.ctx).local_rounds
        num_local_rounds = num_rounds if local_rounds is None else local_rounds
        return math.ceil(train.steps_per_round(len(self.client.private)) * num_local_rounds / num_rounds)

    def substitute_upload(self, round_number: int) -> Message:
        """Return the upload of a diverged client whose divergence must not be noticed.

        It is what the mechanism of the run makes of constant labels, so it has the same privacy as any other upload.
        """
        method, ctx = self.config.method, self.federation.ctx
        if round_number <= self.config.train.rounds - self.config.num_exchanges:
            return {}  # No labels are exchanged in this round.
        uploads: Message = {}
        for name, part in method.uploads.items():
            if isinstance(part, LabelUpload):
                spec, constant = part.spec(ctx), np.zeros(ctx.public_size)
                uploads[name] = LabelVotes(*privatize(constant.astype(np.int64), constant, self.client, ctx, spec))
        return uploads

    def last_evaluation(self) -> dict[str, Any]:
        """Return the last evaluated round, and its metrics by digest of the server's message."""
        path = self.files.path / EVALUATION_FILE
        return read_checksummed_json(path) if path.exists() else {"round": 0, "metrics": {}}

    def save_evaluation(self, round_number: int, metrics: dict[str, dict[str, Any]]) -> None:
        """Store the evaluations of a round here, also if they are not sent."""
        write_atomic(
            self.files.path / EVALUATION_FILE, to_checksummed_json({"round": round_number, "metrics": metrics})
        )

    def save_round(self, round_number: int, response: bytes, metrics_level: MetricsLevel) -> None:
        """Write the state after a round, its response and the level at which it was filtered to disk."""
        self.federation.state.finished = round_number
        arrays, values = capture_state(self.federation.state)
        origin = {"config": self.config.to_dict(), "environment": {"versions": package_versions()}, "nonidentical": []}
        logs = {RESPONSE_FILE: response, METRICS_LEVEL_FILE: metrics_level.encode()}
        checkpoint = checkpoints.Checkpoint(round_number, arrays, values, logs, origin)
        checkpoints.write_checkpoint(self.files.checkpoints_dir, checkpoint)


def require_same_plan(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise `RequestError` if a plan differs from the one that the site joined, other than by how to continue a run."""

    def fixed_part(plan: dict[str, Any]) -> dict[str, Any]:
        sections = {
            name: {key: value for key, value in section.items() if f"{name}.{key}" not in RESUME_SAFE_KEYS}
            if isinstance(section, dict)
            else section
            for name, section in plan["config"].items()
        }
        return {**plan, "config": sections}

    if fixed_part(old) != fixed_part(new):
        raise RequestError("the plan differs from the one that this site joined (plan.json): start another run")
