"""Conditions under which a resumed run produces the same bytes as an uninterrupted one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.config.key_names import display_choices, display_key
from fedmosaic_cli.config.run_config import RESUME_SAFE_KEYS
from fedmosaic_cli.engine.method import depends_on_total_rounds
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.storage.checkpoints import read_newest_manifest, require_valid_checkpoint

if TYPE_CHECKING:
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.storage.runs import RunDirectory

# Keys that --allow-nonidentical may change. No single configuration describes such a run.
OVERRIDABLE_KEYS = {
    "train.lr",
    "train.batch_size",
    "train.local_epochs",
    "train.local_steps",
    "train.clients_per_round",
}
# The recorded facts that affect the last bits of a result.
COMPARED_LIBRARIES = ("fedmosaic", "python", "torch", "numpy", "scikit-learn")
COMPARED_ENVIRONMENT = {
    "cpu": "the CPU's instructions",
    "device": "the device",
    "gpu": "the GPU",
    "execution": "the execution",
    "threads_per_worker": "the number of threads",
    "shards_digest": "the shards' digest",
}


@dataclass(frozen=True)
class ConfigDifference:
    """A change of the configuration, and whether --allow-nonidentical permits it. `text` has stored keys."""

    text: str
    is_overridable: bool


def config_differences(old: RunConfig, new: RunConfig) -> list[ConfigDifference]:
    """Return the changes that affect the result, those that are never permitted first."""
    before, after = old.flat_values(), new.flat_values()
    differences = [
        ConfigDifference(
            f"{key} was {before.get(key)!r} and is now {after.get(key)!r}",
            key in OVERRIDABLE_KEYS or (key.startswith("methods.") and old.method.variant == new.method.variant),
        )
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and key not in RESUME_SAFE_KEYS
    ]
    rounds = f"train.rounds was {old.train.rounds} and is now {new.train.rounds}"
    if new.train.rounds < old.train.rounds:
        differences.append(ConfigDifference(f"{rounds}, which is fewer", is_overridable=False))
    elif new.train.rounds != old.train.rounds and new.privacy.epsilon not in (None, "inf"):
        text = f"{rounds}, which determines the noise of every round (privacy.epsilon)"
        differences.append(ConfigDifference(text, is_overridable=False))
    elif new.train.rounds != old.train.rounds and depends_on_total_rounds(new.method):
        text = f"{rounds}, on which every round of {new.method.info.title} depends"
        differences.append(ConfigDifference(text, is_overridable=True))
    if old.noise is not None or new.noise is not None:
        # Noise is seeded by the round: the same noise on other labels would reveal their difference.
        differences = [replace(difference, is_overridable=False) for difference in differences]
    return sorted(differences, key=lambda difference: difference.is_overridable)


def display_difference(text: str) -> str:
    """Return the text of a difference with the new names of key and values."""
    key, _, rest = text.partition(" ")
    return f"{display_key(key)} {display_choices(key, rest)}"


def check_resumable(files: RunDirectory, environment: dict[str, Any], allow_nonidentical: bool) -> None:
    """Refuse to resume an unfinished run without a valid checkpoint or in another environment."""
    if files.is_finished():
        return
    require_valid_checkpoint(files.checkpoints_dir)
    manifest = read_newest_manifest(files.checkpoints_dir)
    if manifest is not None:
        differences = environment_differences(manifest["environment"], environment)
        require_identical_resume(differences, allow_nonidentical, str(files.path))


def environment_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return the differences in libraries, machine and shards; entries that `new` lacks are not compared."""
    pairs = {name: (old["versions"].get(name), new["versions"].get(name)) for name in COMPARED_LIBRARIES}
    sources = {name: (old.get("plugins") or {}).get(name) for name in new.get("plugins", {})}
    pairs |= {
        f"the plug-in {name}": (describe_source(before), describe_source(new["plugins"][name]))
        for name, before in sources.items()
    }
    pairs |= {label: (old.get(key), new[key]) for key, label in COMPARED_ENVIRONMENT.items() if key in new}
    if "device" in new:  # cuda:0 and cuda:1 are the same type of device
        label = COMPARED_ENVIRONMENT["device"]
        before, after = (str(value).partition(":")[0] for value in pairs[label])
        pairs[label] = (before, after)
    return [f"{label} was {before} and is now {after}" for label, (before, after) in pairs.items() if before != after]


def input_differences(recorded: dict[str, Any], shards_digest: str, plugins: dict[str, dict[str, str]]) -> list[str]:
    """Return the differences in shards and plug-ins between the env.json of a finished run and a planned run.

    Args:
        recorded: Content of env.json.
        shards_digest: Digest of the shards of the planned run; "" if it is unknown.
        plugins: Sources of the plug-ins of the planned run.
    """
    old = {"versions": {}, **recorded}
    new = {"versions": old["versions"], "plugins": plugins}
    if shards_digest and "shards_digest" in recorded:
        new["shards_digest"] = shards_digest
    return environment_differences(old, new)


def describe_source(source: dict[str, str] | None) -> str:
    """Return the recorded source of a plug-in as text."""
    if source is None:
        return "built in"
    return " ".join(filter(None, (source["distribution"] or source["file"], source["sha256"][:12])))


def require_identical_resume(differences: list[str], allow_nonidentical: bool, path: str) -> None:
    """Refuse to resume with differences that change the result, unless they are allowed."""
    if differences and not allow_nonidentical:
        raise RequestError(
            f"cannot resume to the same result: {display_difference(differences[0])} ({path}): set it back, "
            "use another --run-dir, or accept another result with --allow-nonidentical"
        )
