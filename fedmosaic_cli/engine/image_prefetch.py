"""Images on the host: those of the next step are gathered while the device computes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fedmosaic_cli.engine.execution.worker_pool import use_single_thread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fedmosaic_cli.engine.batching import Batch
    from fedmosaic_cli.engine.examples import Examples

    StepBatches = tuple[Batch, Batch | None]
    """The private and the public batch of a step."""


def with_prefetched_images(examples: Examples, steps: Sequence[StepBatches]) -> Iterator[StepBatches]:
    """Yield the batches of each step with their images on the device.

    A second thread gathers the images of a step, in pinned memory for CUDA, while the step before is computed. Images
    that are on the device already are not prefetched.

    Args:
        examples: Any set that shares the array of images.
        steps: The batches of all steps.
    """
    if examples.images.device == examples.device or not steps:
        yield from steps
        return
    with ThreadPoolExecutor(1, thread_name_prefix="images", initializer=use_single_thread) as executor:
        gathered = executor.submit(examples.gather_pixels, step_image_indices(steps[0]))
        for number, (private, public) in enumerate(steps, start=1):
            pixels = examples.to_network_device(gathered.result())
            if number < len(steps):
                gathered = executor.submit(examples.gather_pixels, step_image_indices(steps[number]))
            with_images = replace(private, pixels=pixels[: len(private)], joint_pixels=pixels)
            yield with_images, None if public is None else replace(public, pixels=pixels[len(private) :])


def step_image_indices(step: StepBatches) -> torch.Tensor:
    """Return the positions of the images of both batches."""
    private, public = step
    return private.image_indices if public is None else torch.cat([private.image_indices, public.image_indices])
