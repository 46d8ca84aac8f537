"""Images on the host are gathered one step ahead, in another thread; those on the device are left to the step."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from fedmosaic_cli.engine.batching import resolve_indices
from fedmosaic_cli.engine.examples import Examples
from fedmosaic_cli.engine.image_prefetch import with_prefetched_images
from fedmosaic_cli.methods.fedct import FedCT
from tests.toys import TOYS

META = torch.device("meta")


@pytest.fixture
def client():
    return TOYS["even"].federation(FedCT()).state.clients[0]


@pytest.fixture
def steps(client):
    batches = [torch.arange(3), torch.arange(2), torch.arange(4)]
    return list(zip(resolve_indices(client.private, batches), resolve_indices(client.public, batches), strict=True))


@pytest.fixture
def gathered(monkeypatch):
    """Return the numbers of images and the threads of all gathers."""
    calls = []
    gather = Examples.gather_pixels

    def record(self, image_indices):
        calls.append((len(image_indices), threading.current_thread().name))
        return gather(self, image_indices)

    monkeypatch.setattr(Examples, "gather_pixels", record)
    return calls


def test_images_on_the_device_are_not_prefetched(client, steps, gathered):
    assert list(with_prefetched_images(client.private, steps)) == steps
    assert not gathered


def test_images_of_the_next_step_are_gathered_in_another_thread(client, steps, gathered):
    on_host = replace(client.private, device=META)
    prefetched = with_prefetched_images(on_host, steps)
    private, public = next(prefetched)
    assert private.pixels.device == public.pixels.device == META
    assert (len(private.pixels), len(public.pixels)) == (3, 3)
    assert on_host.batch_inputs(private, public).shape == (6, 1, 2, 2)
    following = list(prefetched)
    assert [size for size, _ in gathered] == [6, 4, 8]
    assert all(name.startswith("images") for _, name in gathered)
    assert [len(private.pixels) for private, _ in following] == [2, 4]


def test_private_batches_alone_are_prefetched(client, steps):
    alone = [(private, None) for private, _ in steps]
    prefetched = list(with_prefetched_images(replace(client.private, device=META), alone))
    assert [(len(private.pixels), public) for private, public in prefetched] == [(3, None), (2, None), (4, None)]


def test_prefetched_images_are_those_of_the_batches(client, steps, monkeypatch):
    monkeypatch.setattr(Examples, "to_network_device", lambda self, pixels: pixels)
    on_host = replace(client.private, device=META)
    for found, (private, public) in zip(with_prefetched_images(on_host, steps), steps, strict=True):
        images = client.private.images
        assert torch.equal(found[0].pixels, images[private.image_indices])
        assert torch.equal(found[1].pixels, images[public.image_indices])


def test_joint_images_of_a_step_are_not_copied_again(client, steps, monkeypatch):
    monkeypatch.setattr(Examples, "to_network_device", lambda self, pixels: pixels)
    monkeypatch.setattr(Examples, "_normalised", lambda self, pixels, windows: pixels)
    on_host = replace(client.private, device=META)
    for found, step in zip(with_prefetched_images(on_host, steps), steps, strict=True):
        joint = on_host.batch_inputs(*found)
        assert joint.data_ptr() == found[0].pixels.data_ptr()
        assert torch.equal(joint, client.private.images[torch.cat([batch.image_indices for batch in step])])


def test_no_steps_need_no_images(client):
    assert list(with_prefetched_images(replace(client.private, device=META), [])) == []


def test_an_abandoned_training_ends_the_thread(client, steps):
    prefetched = with_prefetched_images(replace(client.private, device=META), steps)
    next(prefetched)
    prefetched.close()
    assert not any(thread.name.startswith("images") for thread in threading.enumerate())
