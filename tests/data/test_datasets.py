"""Every loader on small files of the real layout, and on invalid files."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import DATASETS, domainnet, fashion_mnist, load_dataset, office10
from fedmosaic_cli.data.partitioning.partition import partition_dataset
from fedmosaic_cli.data.resolve_settings import resolve_data_settings
from fedmosaic_cli.errors import RequestError
from fedmosaic_cli.runner.prepare import load_and_partition
from tests.data.files import save_images, write_cifar, write_fashion, write_idx, write_pfllib


@pytest.fixture
def data_dirs(tmp_path, monkeypatch):
    """An empty data directory; data installed on this machine is ignored."""
    monkeypatch.setattr(fashion_mnist, "DEBIAN_DIR", tmp_path / "debian")
    (tmp_path / "data").mkdir()
    return DataDirs(tmp_path / "data", cache_dir=tmp_path / "cache")


def load(data_dirs, name, **options):
    """Load a data set with an empty cache."""
    data_dirs = replace(data_dirs, dataset_cache={})
    return load_dataset(resolve_data_settings(DataSettings(dataset=name, **options), data_dirs), data_dirs)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["FashionMNIST/raw", "fashion-mnist", "."])
def test_fashion_mnist(data_dirs, folder, packed):
    write_fashion(data_dirs.data_dir / folder, packed)
    dataset = load(data_dirs, "fashion-mnist")
    assert dataset.images.shape == (80, 28, 28, 1)
    assert dataset.test_mask.tolist() == [False] * 60 + [True] * 20
    assert dataset.labels[:12].tolist() == [*range(10), 0, 1]
    assert dataset.class_names[9] == "ankle boot"


def test_fashion_mnist_as_debian_installs_it(data_dirs, tmp_path):
    write_fashion(tmp_path / "debian")
    assert len(load(data_dirs, "fashion-mnist")) == 80


def domain_pair(data_dirs, domain):
    """Return the images of a synthetic domain of Fashion-MNIST, and the same images without domains."""
    write_fashion(data_dirs.data_dir / "fashion-mnist", train=400, test=120)
    dataset, plain = load(data_dirs, "fashion-mnist", scheme="domain"), load(data_dirs, "fashion-mnist", scheme="iid")
    assert np.array_equal(dataset.labels, plain.labels)
    assert np.array_equal(dataset.test_mask, plain.test_mask)
    chosen = dataset.domain_ids == dataset.domain_names.index(domain)
    return dataset.images[chosen], plain.images[chosen]


@pytest.mark.parametrize("scheme", ["domain", "hybrid"])
def test_fashion_mnist_has_synthetic_domains(data_dirs, scheme):
    write_fashion(data_dirs.data_dir / "fashion-mnist", train=400, test=120)
    settings = resolve_data_settings(DataSettings(dataset="fashion-mnist", scheme=scheme), data_dirs)
    assert settings.dataset == "fashion-mnist-domains"
    dataset = load(data_dirs, "fashion-mnist", scheme=scheme)
    assert dataset.domain_names == ("plain", "inverted", "rotated", "edges")
    assert dataset.images.dtype == np.uint8
    assert dataset.images.shape == (520, 28, 28, 1)
    for split in (dataset.train_indices, dataset.test_indices):
        table = np.histogram2d(dataset.domain_ids[split], dataset.labels[split], bins=(4, 10))[0]
        assert np.ptp(table) == 0, "the same number of each class in each domain"
    named = load(data_dirs, "fashion-mnist-domains", scheme="iid")
    assert named.fingerprint == dataset.fingerprint != load(data_dirs, "fashion-mnist").fingerprint
    assert dataset.fingerprint.startswith("2878163c070d"), "the assignment is part of the data set"
    two = load(data_dirs, "fashion-mnist", scheme=scheme, domains=("edges", "plain"))
    assert len(two) == 260
    assert np.array_equal(two.images[two.domain_ids == 0], dataset.images[dataset.domain_ids == 3])


@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "pathological"])
def test_schemes_without_domains_see_unchanged_fashion_mnist(data_dirs, scheme):
    write_fashion(data_dirs.data_dir / "fashion-mnist")
    dataset = load(data_dirs, "fashion-mnist", scheme=scheme)
    assert (dataset.name, dataset.domain_ids, dataset.domain_names) == ("fashion-mnist", None, ())
    # The fingerprint of version 0.1.0.
    assert dataset.fingerprint.startswith("74560fe26aac")


def test_plain_domain_is_unchanged(data_dirs):
    images, plain = domain_pair(data_dirs, "plain")
    assert np.array_equal(images, plain)


def test_inverting_twice_gives_the_original(data_dirs):
    images, plain = domain_pair(data_dirs, "inverted")
    assert np.array_equal(images.astype(int) + plain, np.full(plain.shape, 255))
    assert np.array_equal(fashion_mnist.invert(images), plain)


def test_rotating_four_times_gives_the_original(data_dirs):
    images, plain = domain_pair(data_dirs, "rotated")
    assert np.array_equal(images[:, 27 - 5, 3], plain[:, 3, 5]), "counter-clockwise"
    assert not np.array_equal(fashion_mnist.rotate(images), plain)
    for _ in range(3):
        images = fashion_mnist.rotate(images)
    assert np.array_equal(images, plain)


def test_edges_are_gradient_magnitudes(data_dirs):
    images, plain = domain_pair(data_dirs, "edges")
    values = plain[..., 0].astype(float)
    vertical, horizontal = (2 * gradient for gradient in np.gradient(values, axis=(1, 2)))
    inner = np.s_[:, 1:-1, 1:-1]
    expected = np.sqrt((vertical**2 + horizontal**2) / 2)[inner]
    assert np.abs(images[..., 0][inner] - expected).max() <= 0.5 + 1e-4
    step = np.zeros((1, 28, 28, 1), dtype=np.uint8)
    step[:, :, 14:] = 255
    assert np.unique(fashion_mnist.edges(step)[0, :, 13:15]).tolist() == [180], "255 / sqrt(2), also at the border"
    assert not fashion_mnist.edges(step)[0, :, :13].any()
    assert not fashion_mnist.edges(np.full((2, 28, 28, 1), 200, dtype=np.uint8)).any()
    corner = np.zeros((1, 28, 28, 1), dtype=np.uint8)
    corner[:, 14:, :14] = corner[:, :14, 14:] = 255
    assert fashion_mnist.edges(corner).max() <= 255


def test_domains_need_square_images(data_dirs):
    folder = data_dirs.data_dir / "fashion-mnist"
    write_fashion(folder, packed=False)
    for part, size in (("train", 60), ("t10k", 20)):
        write_idx(folder / f"{part}-images-idx3-ubyte", np.zeros((size, 28, 20)), packed=False)
    with pytest.raises(RequestError, match="images of 20x28 cannot be rotated"):
        load(data_dirs, "fashion-mnist", scheme="domain")


@pytest.mark.parametrize(
    "damage", [b"", b"\0\0\x08\x03", b"\0\0\x0b\x01\0\0\0\x02ab", b"not idx", b"\0\0\x08\x01\0\0\0\x09ab"]
)
def test_a_damaged_idx_file_is_named(data_dirs, damage):
    folder = data_dirs.data_dir / "fashion-mnist"
    write_fashion(folder, packed=False)
    (folder / "t10k-labels-idx1-ubyte").write_bytes(damage)
    with pytest.raises(RequestError, match="t10k-labels"):
        load(data_dirs, "fashion-mnist")


def test_a_truncated_gzip_file_is_named(data_dirs):
    folder = data_dirs.data_dir / "fashion-mnist"
    write_fashion(folder)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RequestError, match="train-images"):
        load(data_dirs, "fashion-mnist")


def test_cifar10_as_torchvision_stores_it(data_dirs):
    write_cifar(data_dirs.data_dir / "cifar-10-batches-py")
    dataset = load(data_dirs, "cifar10")
    assert dataset.images.shape == (120, 32, 32, 3)
    assert dataset.images[45, 0, 0].tolist() == [2, 5, 7], "batch by batch, planes turned into pixels"
    assert dataset.test_mask.sum() == 20
    assert dataset.test_mask[100:].all()


def test_cifar10_as_images(data_dirs):
    for part, count in (("train", 3), ("test", 2)):
        for label in ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"):
            save_images(data_dirs.data_dir / "cifar10" / part / label, count, side=32)
    dataset = load(data_dirs, "cifar10")
    assert dataset.images.shape == (50, 32, 32, 3)
    assert dataset.test_mask.sum() == 20
    assert dataset.class_names[5] == "dog"
    assert np.bincount(dataset.labels).tolist() == [5] * 10


def test_pickle_that_calls_a_function_is_refused(data_dirs):
    folder = data_dirs.data_dir / "cifar-10-batches-py"
    write_cifar(folder)

    class Evil:
        def __reduce__(self):
            return print, ("owned",)

    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": Evil()}))
    with pytest.raises(RequestError, match=r"it asks for builtins\.print .*data_batch_3"):
        load(data_dirs, "cifar10")


def office(data_dirs, lists):
    """Write two domains of Office, with one class under an alias."""
    root = data_dirs.data_dir / "office_caltech_10"
    for domain, count in (("amazon", 6), ("webcam", 5)):
        for label in office10.CLASSES:
            save_images(root / domain / label.replace("laptop_computer", "laptop"), count, side=16)
    if lists:
        for domain, count in (("amazon", 6), ("webcam", 5)):
            paths = [
                f"office_caltech_10/{domain}/{c}/{n:04d}.jpg" for n in reversed(range(count)) for c in office10.CLASSES
            ]
            for part, some in (("train", paths[10:]), ("test", paths[:10])):
                content = (some, [p.split("/")[2] for p in some])
                if lists == "arrays":
                    content = np.array(content)
                (root / f"{domain}_{part}.pkl").write_bytes(pickle.dumps(content))


@pytest.mark.parametrize("lists", ["lists", "arrays"])
def test_office10_with_the_lists_of_fedbn(data_dirs, lists):
    office(data_dirs, lists)
    dataset = load(data_dirs, "office10", domains=("amazon", "webcam"), image_size=16)
    assert dataset.images.shape == (110, 16, 16, 3)
    assert dataset.domain_names == ("amazon", "webcam")
    # In the order of the lists: training first, the last number first, the classes in turn.
    assert dataset.labels[:12].tolist() == [*range(10), 0, 1]
    assert dataset.test_mask[:50].tolist() == [False] * 50
    assert dataset.test_mask[50:60].tolist() == [True] * 10
    assert not dataset.warnings


def test_office10_without_lists_has_a_fixed_test_split(data_dirs):
    office(data_dirs, lists=None)
    dataset = load(data_dirs, "office10", domains=("amazon", "webcam"), image_size=16)
    assert [dataset.test_mask[dataset.domain_ids == number].sum() for number in (0, 1)] == [12, 10]
    assert "no lists for amazon, webcam" in dataset.warnings[0]
    assert load(data_dirs, "office10", domains=("amazon", "webcam"), image_size=16).fingerprint == dataset.fingerprint


def test_missing_domain_is_named_with_a_hint(data_dirs):
    office(data_dirs, lists=None)
    with pytest.raises(RequestError, match=r"domain 'caltech' .*--domains amazon,webcam"):
        load(data_dirs, "office10")
    with pytest.raises(RequestError, match="did you mean 'webcam'"):
        load(data_dirs, "office10", domains=("webcm",))


def test_domainnet_with_its_official_lists(data_dirs):
    root = data_dirs.data_dir / "domainnet"
    for domain in domainnet.DOMAINS:
        for label in (*domainnet.CLASSES, "aircraft_carrier"):
            save_images(root / domain / label, 4, side=16)
        for part, numbers in (("train", (3, 1, 0)), ("test", (2,))):
            lines = [f"{domain}/{c}/{n:04d}.jpg 17" for c in ("aircraft_carrier", *domainnet.CLASSES) for n in numbers]
            (root / f"{domain}_{part}.txt").write_text("\n".join(lines) + "\n")
    dataset = load(data_dirs, "domainnet", image_size=16)
    assert len(dataset) == 6 * 10 * 4, "ten classes and no more"
    assert len(set(dataset.labels[:20].tolist())) > 5, "lists that run class by class are brought into another order"
    assert dataset.class_names[3] == "ice_cream"
    assert dataset.test_mask.sum() == 60
    both = root / "real_test.txt"
    text = both.read_text()
    both.write_text(text + "real/zebra/0003.jpg 9\n")
    with pytest.raises(RequestError, match="lists of 'real' contain an image twice"):
        load(data_dirs, "domainnet", image_size=16)
    both.write_text("\ufeff" + text, encoding="utf-8")
    assert load(data_dirs, "domainnet", image_size=16).fingerprint == dataset.fingerprint
    (root / "sketch" / "zebra" / "0001.jpg").unlink()
    with pytest.raises(RequestError, match=r"1 listed images not found, the first is sketch/zebra/0001\.jpg"):
        load(data_dirs, "domainnet", image_size=16)


LAYOUTS = {
    "classes": ("{label}", None, ()),
    "parts": ("{part}/{label}", True, ()),
    "parts in capitals": ("{part!u}/{label}", True, ()),
    "domains": ("{domain}/{label}", None, ("east", "west")),
    "domains and parts": ("{domain}/{part}/{label}", True, ("east", "west")),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_folder_of_images(data_dirs, layout):
    pattern, has_test, domains = LAYOUTS[layout]
    for domain in ("east", "west"):
        for part in ("train", "test"):
            for first, label in enumerate(("cat", "dog with hat")):
                folder = pattern.replace("{part!u}", part.upper()).format(domain=domain, part=part, label=label)
                save_images(data_dirs.data_dir / folder, 3, first=10 * first, ending="png")
    (data_dirs.data_dir / ".hidden").mkdir()
    (data_dirs.data_dir / "README.txt").write_text("not an image")
    dataset = load(data_dirs, "folder", scheme="iid", public_size=0)
    assert dataset.class_names == ("cat", "dog with hat")
    assert dataset.domain_names == domains
    assert (dataset.test_mask is None) == (has_test is None)
    assert len(dataset) == 6 * max(len(domains), 1) * (2 if has_test else 1)
    first = np.asarray(Image.open(next(iter(sorted(data_dirs.data_dir.rglob("0000.png"))))))
    assert np.array_equal(dataset.images[0], first)


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        ([], "no directories of images"),
        (
            ["train/a", "test/a", "val/a"],
            "'val' is not train or test",
        ),
        (["east/train/a", "east/test/a", "west/a"], "some domains have train and test splits"),
        (["training/a", "testing/a"], "'testing' is not train or test"),
        (["east/Train/a", "east/validation/a"], "'validation' is not train or test"),
        (["a", "b/c"], "no images in 'b', which is next to classes"),
        (["east/train/a", "east/other/a"], "'other' is not train or test"),
    ],
)
def test_invalid_folder_layout_is_refused(data_dirs, folders, message):
    for folder in folders:
        save_images(data_dirs.data_dir / folder, 1)
    with pytest.raises(RequestError, match=message):
        load(data_dirs, "folder", scheme="iid", public_size=0)


def save_npz(data_dirs, **arrays):
    np.savez(data_dirs.data_dir / "mine.npz", **arrays)


GREY = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)


def test_npz_with_all_arrays(data_dirs):
    save_npz(
        data_dirs,
        x=np.stack([GREY] * 3, axis=-1),
        y=np.array(["b", "a", "b", "a", "b", "a"]),
        domain=np.array([1, 1, 0, 0, 1, 1]),
        test=np.array([0, 0, 0, 0, 1, 1], dtype=bool),
        client=np.array([7, 7, 9, 9, 7, 9]),
    )
    dataset = load(data_dirs, "npz", scheme="natural", public_size=0)
    assert dataset.class_names == ("a", "b")
    assert dataset.labels.tolist() == [1, 0, 1, 0, 1, 0]
    assert dataset.domain_names == ("0", "1")
    assert dataset.test_mask.tolist() == [False] * 4 + [True] * 2
    assert dataset.client_ids.tolist() == [0, 0, 1, 1, 0, 1]
    result = partition_dataset(
        dataset, resolve_data_settings(DataSettings(dataset="npz", scheme="natural", public_size=0), data_dirs), 0
    )
    assert [(shard.train.tolist(), shard.test.tolist()) for shard in result.shards] == [([0, 1], [4]), ([2, 3], [5])]


def test_npz_with_required_arrays_only(data_dirs):
    save_npz(data_dirs, x=GREY, y=np.array([0, 2, 0, 2, 0, 2]))
    dataset = load(data_dirs, "npz", scheme="iid", clients=2)
    assert dataset.images.shape == (6, 4, 4, 1)
    assert dataset.class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": GREY.astype(np.float32), "y": np.zeros(6, dtype=int)}, "x is float32, not uint8"),
        ({"x": GREY[0], "y": np.zeros(4, dtype=int)}, "x has shape"),
        ({"x": GREY, "y": np.zeros(5, dtype=int)}, "save one value per example"),
        ({"x": GREY, "y": np.full(6, -1)}, "number classes from 0"),
        ({"x": GREY, "y": np.full(6, 10**9)}, "number classes from 0"),
        ({"x": GREY, "y": np.zeros(6)}, "integers or strings"),
        ({"x": GREY, "y": np.zeros(())}, "save one value per example"),
        ({"x": GREY, "y": np.zeros(6, dtype=int), "test": np.array(["test"] * 6)}, "true or false"),
        ({"x": GREY, "y": np.zeros(6, dtype=int), "test": np.full(6, 2)}, "true or false"),
        ({"x": GREY, "y": np.arange(6) % 2, "test": np.ones(6, dtype=bool)}, "none to train on"),
        ({"x": GREY, "y": np.zeros(6, dtype=int)}, "has one class"),
        ({"x": GREY[:0], "y": np.zeros(0, dtype=int)}, "has no examples"),
        ({"x": GREY, "y": np.zeros(6, dtype=int), "client": np.full(6, np.nan)}, "integers or strings"),
        ({"x": GREY, "y": np.array(["a\udcff"] * 6)}, "not printable"),
        ({"x": GREY, "y": np.array([{}] * 6)}, "cannot read"),
        ({"x": GREY}, "no array 'y'"),
        ({"x": GREY, "y": np.zeros(6, dtype=int), "z": GREY}, "unknown array 'z'"),
    ],
)
def test_invalid_npz_is_refused(data_dirs, arrays, message):
    save_npz(data_dirs, **arrays)
    with pytest.raises(RequestError, match=message):
        load_and_partition(
            DataSettings(dataset="npz", scheme="iid", public_size=0, clients=2), 0, data_dirs.data_dir / "s", data_dirs
        )


def test_npz_domains_are_those_that_occur(data_dirs):
    save_npz(data_dirs, x=GREY, y=np.zeros(6, dtype=int), domain=np.array([0, 5, 0, 5, 0, 5]))
    dataset = load(data_dirs, "npz", scheme="domain", public_size=0)
    assert dataset.domain_names == ("0", "5")
    with pytest.raises(RequestError, match="unknown domain '7'"):
        load(data_dirs, "npz", scheme="iid", public_size=0, domains=("7",))


def test_file_that_is_not_an_npz_archive_is_refused(data_dirs):
    (data_dirs.data_dir / "mine.npz").write_bytes(b"PK nonsense")
    with pytest.raises(RequestError, match="cannot read"):
        load(data_dirs, "npz", scheme="iid", public_size=0)
    np.save(data_dirs.data_dir / "mine.npy", GREY)
    (data_dirs.data_dir / "mine.npy").rename(data_dirs.data_dir / "mine.npz")
    with pytest.raises(RequestError, match="cannot read"):
        load(data_dirs, "npz", scheme="iid", public_size=0)


def test_pfllib_split_is_unchanged(data_dirs):
    pixels = write_pfllib(data_dirs.data_dir)
    settings = resolve_data_settings(DataSettings(dataset="pfllib", scheme="natural", public_size=12), data_dirs)
    dataset = load_dataset(settings, data_dirs)
    assert settings.clients == 3
    assert np.array_equal(dataset.images, pixels), "the bytes that the floats came from"
    result = partition_dataset(dataset, settings, 0)
    assert len(result.public) == 12
    for shard in result.shards:
        assert set(dataset.client_ids[shard.train].tolist()) == {shard.client}
        assert len(shard.test) == 8, "its test part, whole"
    assert sum(len(shard.train) for shard in result.shards) == 3 * 24 - 12


def test_invalid_pfllib_split_is_refused(data_dirs):
    write_pfllib(data_dirs.data_dir)
    path = data_dirs.data_dir / "train" / "1.npz"
    path.unlink()
    with pytest.raises(RequestError, match=r"train/1\.npz is missing"):
        load(data_dirs, "pfllib", scheme="natural")
    with path.open("wb") as file:
        np.savez_compressed(
            file, data={"x": np.full((2, 3, 8, 8), 0.1234, dtype=np.float32), "y": np.zeros(2, dtype=int)}
        )
    with pytest.raises(RequestError, match="was not normalised with mean"):
        load(data_dirs, "pfllib", scheme="natural", public_size=3)
    for content in ({"x": 1, "y": 2}, [1, 2], {"x": [[1], [1, 2]], "y": []}):
        with path.open("wb") as file:
            np.savez_compressed(file, data=np.array(content, dtype=object)) if isinstance(content, list) else (
                np.savez_compressed(file, data=content)
            )
        with pytest.raises(RequestError, match=r"not a split of PFLlib|not one object"):
            load(data_dirs, "pfllib", scheme="natural", public_size=3)
    with path.open("wb") as file:
        np.savez_compressed(file, data={"x": np.zeros((2, 3, 8, 8), dtype=np.float32), "y": np.full(2, 10**10)})
    with pytest.raises(RequestError, match="at most 65536 classes"):
        load(data_dirs, "pfllib", scheme="natural", public_size=3)
    with path.open("wb") as file:
        np.savez_compressed(file, data={"x": 1, "y": 2})
    with pytest.raises(RequestError, match="not a split of PFLlib"):
        load(data_dirs, "pfllib", scheme="natural", public_size=3)


@pytest.mark.parametrize(
    "name", [name for name, source in DATASETS.items() if name not in ("digits", "digits-domains")]
)
def test_missing_data_set_gives_a_hint_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setattr(fashion_mnist, "DEBIAN_DIR", tmp_path / "debian")
    nowhere = DataDirs(tmp_path / "nowhere", cache_dir=tmp_path)
    source = DATASETS[name]
    assert source.find(nowhere.data_dir) is None
    assert source.setup_hint
    assert "\n" not in source.setup_hint
    if not source.downloads or name == "domainnet":
        with pytest.raises(RequestError, match=r"not found .*nowhere"):
            load(nowhere, name, public_size=1)
    assert not nowhere.data_dir.exists()


def test_info_of_embedded_data_sets_is_correct():
    for name in ("digits", "digits-domains"):
        dataset, facts = load_dataset(DataSettings(dataset=name), DataDirs()), DATASETS[name].info
        assert (facts.num_classes, facts.num_channels, facts.image_size, facts.num_train) == (
            dataset.num_classes,
            dataset.images.shape[3],
            dataset.images.shape[1],
            len(dataset),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "cifer10"}, "did you mean 'cifar10'"),
        ({"dataset": "digits", "scheme": "domain"}, "has no domains"),
        ({"dataset": "digits", "image_size": 32}, "have one size"),
        ({"dataset": "digits", "domains": ("a",)}, r"has no domains \(data\.domains\): leave it out"),
        ({"dataset": "digits-domains", "domains": ("plain", "plain")}, "is listed twice"),
        ({"dataset": "digits", "protocol": "fedbn"}, "protocol fedbn is for office10 and domainnet"),
        ({"dataset": "office10", "scheme": "hybrid", "protocol": "fedbn"}, "protocol fedbn is for"),
        ({"dataset": "digits", "scheme": "natural"}, "does not assign examples to clients"),
        ({"dataset": "digits", "flip_labels": (15,)}, "no client 15"),
    ],
)
def test_invalid_settings_are_refused_before_loading(options, message, data_dirs):
    with pytest.raises(RequestError, match=message):
        resolve_data_settings(DataSettings(**options), data_dirs)


def test_resolving_twice_changes_nothing(data_dirs):
    for options in (
        DataSettings(),
        DataSettings(scheme="hybrid"),
        DataSettings(dataset="fashion-mnist", scheme="domain"),
        DataSettings(dataset="fashion-mnist", scheme="hybrid", clients_per_domain=(1, 2, 3, 4)),
        DataSettings(examples_per_client=20),
        DataSettings(dataset="office10", scheme="domain", protocol="fedbn"),
        DataSettings(dataset="cifar10", protocol="pfllib"),
    ):
        once = resolve_data_settings(options, data_dirs)
        assert resolve_data_settings(once, data_dirs) == once
        assert None not in (once.clients, once.public_size)


def test_digits_equal_those_of_scikit_learn():
    from sklearn.datasets import load_digits as theirs

    bundled, ours = theirs(), load_dataset(DataSettings(dataset="digits"), DataDirs())
    assert np.array_equal(ours.images[..., 0], np.rint(bundled.images * (255 / 16)))
    assert np.array_equal(ours.labels, bundled.target)


def test_only_the_last_data_set_is_cached(tmp_path):
    data_dirs = DataDirs(tmp_path)
    first = load_dataset(DataSettings(dataset="digits"), data_dirs)
    assert load_dataset(DataSettings(dataset="digits", clients=7), data_dirs) is first
    load_dataset(DataSettings(dataset="digits-domains"), data_dirs)
    assert len(data_dirs.dataset_cache) == 1
    assert load_dataset(DataSettings(dataset="digits"), data_dirs) is not first


def test_cifar10_images_are_contiguous(data_dirs):
    """Other layouts would be copied before the first round and double the memory."""
    write_cifar(data_dirs.data_dir / "cifar-10-batches-py")
    assert load(data_dirs, "cifar10").images.flags.c_contiguous
