"""What must be the same for a run that goes on to end in the same bytes as one that was never interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.resume_changes import config_differences
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.checkpoints import read_newest_manifest, require_valid_checkpoint

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.storage.runs import RunDirectory

# Of all that is recorded about a machine, what decides the last bits of a number.
COMPARED_LIBRARIES = ("fedmosaic", "python", "torch", "numpy", "scikit-learn")
COMPARED_ENVIRONMENT = {
    "cpu": "the CPU's instructions",
    "device": "the device",
    "gpu": "the GPU",
    "execution": "the execution",
    "threads_per_worker": "the number of threads",
    "shards_digest": "the shards' digest",
}


def check_resumable(files: RunDirectory, environment: dict[str, Any], allow_nonidentical: bool) -> None:
    """Refuse a run that is not finished and cannot go on, as far as that can be told before it is put together."""
    if files.is_finished():
        return
    require_valid_checkpoint(files.checkpoints_dir)
    manifest = read_newest_manifest(files.checkpoints_dir)
    if manifest is not None:
        require_identical_resume(
            environment_differences(manifest["environment"], environment), allow_nonidentical, str(files.path)
        )


def resume_differences(
    old: RunConfig, new: RunConfig, old_environment: dict[str, Any], new_environment: dict[str, Any]
) -> list[str]:
    """In what a continuation differs from the run so far: settings, libraries, machine, shards."""
    return [difference.text for difference in config_differences(old, new)] + environment_differences(
        old_environment, new_environment
    )


def environment_differences(old_environment: dict[str, Any], new_environment: dict[str, Any]) -> list[str]:
    """The same without settings; what is not known now is not compared."""
    found = []
    for name in COMPARED_LIBRARIES:
        found += describe_change(name, old_environment["versions"].get(name), new_environment["versions"].get(name))
    for key, words in COMPARED_ENVIRONMENT.items():
        if key not in new_environment:
            continue
        # cuda:0 or cuda:1 is the same kind of device.
        kinds = [
            str(each.get(key)).partition(":")[0] if key == "device" else each.get(key)
            for each in (old_environment, new_environment)
        ]
        found += describe_change(words, *kinds)
    return found


def describe_change(label: str, old: object, new: object) -> list[str]:
    return [f"{label} was {old} and is now {new}"] if old != new else []


def require_identical_resume(differences: list[str], allowed: bool, path: str) -> None:
    """Refuse to go on to another result than a run in one go would have, unless that is what is wanted."""
    if differences and not allowed:
        raise RequestError(
            f"cannot resume to the same result: {differences[0]} ({path}): set it back, use another --run-dir, "
            "or accept another result with --allow-nonidentical"
        )
