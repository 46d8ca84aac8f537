"""What must be the same for a run that goes on to end in the same bytes as one that was never interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.resume_changes import differences
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.checkpoints import check_usable, newest_manifest

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.storage.runs import RunFiles

# Of all that is recorded about a machine, what decides the last bits of a number.
LIBRARIES = ("fedmosaic", "python", "torch", "numpy", "scikit-learn")
CIRCUMSTANCES = {
    "cpu": "the CPU's instructions",
    "device": "the device",
    "gpu": "the GPU",
    "execution": "the execution",
    "threads_per_worker": "the number of threads",
    "shards_digest": "the shards' digest",
}


def check_beforehand(files: RunFiles, now: dict[str, Any], nonidentical: bool) -> None:
    """Refuse a run that is not finished and cannot go on, as far as that can be told before it is put together."""
    if files.finished():
        return
    check_usable(files.checkpoints)
    manifest = newest_manifest(files.checkpoints)
    if manifest is not None:
        check_departures(changed_surroundings(manifest["environment"], now), nonidentical, str(files.path))


def departures(old: RunConfig, new: RunConfig, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """In what a continuation differs from the run so far: settings, libraries, machine, shards."""
    return [difference.text for difference in differences(old, new)] + changed_surroundings(before, now)


def changed_surroundings(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The same without settings; what is not known now is not compared."""
    found = []
    for name in LIBRARIES:
        found += difference(name, before["versions"].get(name), now["versions"].get(name))
    for key, words in CIRCUMSTANCES.items():
        if key not in now:
            continue
        # cuda:0 or cuda:1 is the same kind of device.
        kinds = [str(each.get(key)).partition(":")[0] if key == "device" else each.get(key) for each in (before, now)]
        found += difference(words, *kinds)
    return found


def difference(what: str, before: object, now: object) -> list[str]:
    return [f"{what} was {before} and is now {now}"] if before != now else []


def check_departures(found: list[str], allowed: bool, where: str) -> None:
    """Refuse to go on to another result than a run in one go would have, unless that is what is wanted."""
    if found and not allowed:
        raise RequestError(
            f"cannot resume to the same result: {found[0]} ({where}): set it back, use another --run-dir, "
            "or accept another result with --allow-nonidentical"
        )
