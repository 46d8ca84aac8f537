"""`--dry-run`: what would be done, from which values, at what price."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from fedmosaic_cli.cli.console import out, remark, say, say_json
from fedmosaic_cli.cli.privacy_options import block_lines
from fedmosaic_cli.cli.views.progress_view import WAYS
from fedmosaic_cli.config.run_config import flat
from fedmosaic_cli.labels.privacy.privacy_report import too_likely
from fedmosaic_cli.runner.privacy_section import planned_privacy

if TYPE_CHECKING:
    from fedmosaic_cli.config.layers import Layers
    from fedmosaic_cli.config.run_config import RunConfig
    from fedmosaic_cli.data.data_dirs import Place
    from fedmosaic_cli.storage.runs import RunFiles
    from fedmosaic_cli.storage.shards import Shards


def show_plan(
    configs: list[RunConfig],
    layers: Layers,
    files: list[RunFiles],
    given: Shards | None,
    place: Place,
    device_name: str,
    as_json: bool,
) -> None:
    """The configuration with the origin of each value, the runs, and their work, memory and traffic."""
    from fedmosaic_cli.runner.build import check_networks, find_devices
    from fedmosaic_cli.runner.cost_estimates import costs, facts_of_data, facts_of_shards

    device = find_devices(device_name)[0]
    values: dict[str, object] = {}
    for config in configs:
        values |= flat({name: part for name, part in config.to_dict().items() if isinstance(part, dict)})
    settings = [{"key": k, "value": v, "origin": layers.origin(k)} for k, v in values.items()]
    # Runs with one seed share their data.
    one_a_seed = {config.partition_seed: config.data for config in configs}
    facts = {
        seed: facts_of_shards(given) if given else facts_of_data(data, seed, place) for seed, data in one_a_seed.items()
    }
    for config in configs:
        channels, height, width = facts[config.partition_seed].input_shape
        check_networks(config, (height, width, channels), device)
    runs = [
        {
            "path": str(spot.path),
            "exists": spot.exists(),
            **costs(config, facts[config.partition_seed], device),
            "privacy": planned_privacy(
                config, facts[config.partition_seed].classes, facts[config.partition_seed].sizes
            ),
        }
        for config, spot in zip(configs, files, strict=True)
    ]
    noisy = [config for config in configs if config.noise]
    warnings = [too_likely(config.privacy.delta, facts[config.partition_seed].sizes or []) for config in noisy]
    for warning in dict.fromkeys(filter(None, warnings)):
        remark(f"warning: {warning}")
    if as_json:
        say_json({"configuration": settings, "runs": runs})
        return
    view = Table("key", "value", "from", box=None, pad_edge=False)
    for setting in settings:
        view.add_row(
            str(setting["key"]), "-" if setting["value"] is None else str(setting["value"]), str(setting["origin"])
        )
    out().print(view)
    say("")
    headings = ("run", "rounds", "steps", "data MB", "models MB", "step MB", "bits up", "bits down")
    work = Table(*headings, box=None, pad_edge=False)
    for run in runs:
        bits = ["raw data" if run[way] is None else f"{run[way]:,}" for way in ("bits_up", "bits_down")]
        memory = ["?" if run[name] is None else f"{run[name]:,.1f}" for name in ("data_mb", "models_mb", "step_mb")]
        steps = "?" if run["steps"] is None else f"{run['steps']:,}"
        path = f"{run['path']} (exists: needs --resume or another --runs-dir)" if run["exists"] else run["path"]
        work.add_row(path, f"{run['rounds']}", steps, *memory, *bits)
    out().print(work)
    blocks = {config.method.variant: run["privacy"] for config, run in zip(configs, runs, strict=True)}
    for variant, block in blocks.items():
        for line in block_lines(variant, block) if block else []:
            say(line)
    for missing in dict.fromkeys(run["missing"] for run in runs if run["missing"]):
        say(f"missing: {missing}")
    ways = dict.fromkeys(f"clients {WAYS[run['execution']]}, workers: {run['workers']}" for run in runs)
    say(f"on {device}: {'; '.join(ways)}; memory is about the sum of data, models and step, beside torch's own")
    say("bits are per client and round of exchange; models include optimizer state; nothing was written")
