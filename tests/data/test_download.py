"""Downloads from a local server: checks, extraction and resuming."""

from __future__ import annotations

import hashlib
import io
import shutil
import stat
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedmosaic_cli.data.data_dirs import DataDirs
from fedmosaic_cli.data.data_settings import DataSettings
from fedmosaic_cli.data.datasets import DATASETS, load_dataset
from fedmosaic_cli.data.io.download import Download, download_files, extract_archive
from fedmosaic_cli.errors import RequestError, ResourceError, RunStateError
from fedmosaic_cli.storage.lock import directory_lock
from tests.data.files import write_cifar


class FileServer(BaseHTTPRequestHandler):
    """Serves `files` and supports range requests."""

    files: dict[str, bytes] = {}  # noqa: RUF012 - the tests put something there
    ranges: list[str | None] = []  # noqa: RUF012

    def do_GET(self):
        content = self.files.get(self.path.lstrip("/"))
        wanted = self.headers.get("Range")
        self.ranges.append(wanted)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:])

    def log_message(self, *message):
        return None


@pytest.fixture
def server_url():
    FileServer.files, FileServer.ranges = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), FileServer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def publish(url: str, name: str, content: bytes, **more) -> Download:
    FileServer.files[name] = content
    return Download(f"{url}/{name}", "set", len(content), hashlib.sha256(content).hexdigest(), **more)


def test_download_of_a_file(server_url, tmp_path):
    progress = []
    download = publish(server_url, "list.txt", b"a list")
    data_dirs = DataDirs(tmp_path, on_progress=lambda *message: progress.append(message))
    download_files((download,), data_dirs)
    assert (tmp_path / "set" / "list.txt").read_bytes() == b"a list"
    assert progress[-1] == ("downloading list.txt", 6, 6)
    download_files((download,), data_dirs)
    assert len(FileServer.ranges) == 1, "what is there is not fetched again"


def test_interrupted_download_is_resumed(server_url, tmp_path):
    download = publish(server_url, "big.bin", b"0123456789")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / ".big.bin.part").write_bytes(b"01234")
    download_files((download,), DataDirs(tmp_path))
    assert FileServer.ranges == ["bytes=5-"]
    assert (tmp_path / "set" / "big.bin").read_bytes() == b"0123456789"


def test_closed_connection_keeps_the_partial_file(server_url, tmp_path):
    download = publish(server_url, "big.bin", b"0123456789")
    FileServer.files["big.bin"] = b"01234"
    with pytest.raises(ResourceError, match="run the command again to resume"):
        download_files((download,), DataDirs(tmp_path))
    FileServer.files["big.bin"] = b"0123456789"
    download_files((download,), DataDirs(tmp_path))
    assert FileServer.ranges == [None, "bytes=5-"]
    assert (tmp_path / "set" / "big.bin").read_bytes() == b"0123456789"


@pytest.mark.parametrize("wrong", [b"012345678X", b"much too long for it"])
def test_file_with_wrong_content_is_refused_and_removed(server_url, tmp_path, wrong):
    download = publish(server_url, "big.bin", b"0123456789")
    FileServer.files["big.bin"] = wrong
    with pytest.raises(ResourceError, match="differs from the published one"):
        download_files((download,), DataDirs(tmp_path))
    assert list(tmp_path.rglob("*")) == []


def test_network_error_is_one_line(tmp_path):
    download = Download("http://127.0.0.1:9/x.bin", "set", 10, "0" * 64)
    with pytest.raises(ResourceError, match=r"cannot download http://127\.0\.0\.1:9/x\.bin: .*put it into"):
        download_files((download,), DataDirs(tmp_path))
    assert list(tmp_path.iterdir()) == [], "nothing was begun"
    with pytest.raises(ResourceError, match="Not Found"):
        download_files((missing_download(),), DataDirs(tmp_path))


def missing_download() -> Download:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FileServer)
    threading.Thread(target=lambda: (server.handle_request(), server.server_close())).start()
    return Download(f"http://127.0.0.1:{server.server_port}/gone.bin", "set", 10, "0" * 64)


def test_download_checks_disk_space_first(tmp_path):
    with pytest.raises(ResourceError, match=r"disk space are needed.* free some space for x.bin"):
        download_files((Download("http://127.0.0.1:9/x.bin", "set", 10**18, "0" * 64),), DataDirs(tmp_path))


def tarred(entries: dict[str, bytes], link: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    return buffer.getvalue()


def zipped(entries: dict[str, bytes], link: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, "/etc/passwd")
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [tarred, zipped])
def test_only_wanted_directories_are_extracted(server_url, tmp_path, pack):
    content = pack({"clipart/bird/1.jpg": b"1", "clipart/boat/2.jpg": b"2", "elsewhere/3": b"3"})
    download = publish(server_url, "clipart.zip", content, extracted_directories=("clipart/bird",))
    download_files((download,), DataDirs(tmp_path))
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["set/.clipart.zip.done", "set/clipart/bird/1.jpg"]
    download_files((download,), DataDirs(tmp_path))
    assert len(FileServer.ranges) == 1
    shutil.rmtree(tmp_path / "set" / "clipart")
    download_files((download,), DataDirs(tmp_path))
    assert (tmp_path / "set" / "clipart" / "bird" / "1.jpg").exists(), "a mark alone is no data"


@pytest.mark.parametrize("pack", [tarred, zipped])
def test_archive_cannot_write_outside_the_target(tmp_path, pack):
    (tmp_path / "a.bin").write_bytes(pack({"inside/../../evil": b"x"}))
    (tmp_path / "target").mkdir()
    with pytest.raises(RequestError, match="is outside the target directory"):
        extract_archive(tmp_path / "a.bin", tmp_path / "target", ("inside",))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("pack", [tarred, zipped])
def test_links_in_wanted_directories_are_refused(tmp_path, pack):
    (tmp_path / "a.bin").write_bytes(pack({"inside/file": b"x"}, link="inside/link"))
    with pytest.raises(RequestError, match=r"'inside/link' is a link or a device .*a\.bin"):
        extract_archive(tmp_path / "a.bin", tmp_path, ("inside",))
    (tmp_path / "a.bin").write_bytes(pack({"inside/file": b"x"}, link="elsewhere/link"))
    extract_archive(tmp_path / "a.bin", tmp_path, ("inside",))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.bin", "file", "inside"]


@pytest.mark.parametrize("pack", [tarred, zipped])
def test_archive_that_expands_without_measure_is_refused(tmp_path, monkeypatch, pack):
    monkeypatch.setattr("fedmosaic_cli.data.io.download.EXPANSION_ALLOWANCE_BYTES", 1_000_000)
    (tmp_path / "a.bin").write_bytes(pack({f"inside/{number}": bytes(600_000) for number in range(2)}))
    with pytest.raises(RequestError, match=r"it would expand to more than 1000000 bytes .*a\.bin"):
        extract_archive(tmp_path / "a.bin", tmp_path, ("inside",))
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archive_with_one_name_for_two_files_is_refused(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("inside/file", b"one")
        archive.writestr("inside/file", b"two")
    (tmp_path / "a.zip").write_bytes(buffer.getvalue())
    with pytest.raises(RequestError, match="'inside/file' occurs twice"):
        extract_archive(tmp_path / "a.zip", tmp_path, ("inside",))


def test_interrupted_extraction_leaves_no_part_of_a_directory(tmp_path, monkeypatch):
    (tmp_path / "a.zip").write_bytes(zipped({"inside/one": b"1", "inside/two": b"2"}))

    def stop_at_two(path, blocks):
        if path.name == "two":
            raise KeyboardInterrupt
        path.write_bytes(b"".join(blocks))

    with monkeypatch.context() as patched:
        patched.setattr("fedmosaic_cli.data.io.download.write_new_blocks", stop_at_two)
        with pytest.raises(KeyboardInterrupt):
            extract_archive(tmp_path / "a.zip", tmp_path, ("inside",))
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]
    extract_archive(tmp_path / "a.zip", tmp_path, ("inside",))
    assert sorted(path.name for path in (tmp_path / "inside").iterdir()) == ["one", "two"]


def test_extraction_keeps_other_files_of_the_user(tmp_path):
    (tmp_path / "inside" / "own").mkdir(parents=True)
    (tmp_path / "inside" / "own" / "mine").write_bytes(b"mine")
    (tmp_path / "inside" / "own" / "old").write_bytes(b"old")
    (tmp_path / "a.zip").write_bytes(zipped({"inside/own/old": b"new", "inside/more/file": b"x"}))
    extract_archive(tmp_path / "a.zip", tmp_path, ("inside",))
    files = {str(path.relative_to(tmp_path / "inside")): path for path in (tmp_path / "inside").rglob("*")}
    contents = {name: path.read_bytes() for name, path in files.items() if path.is_file()}
    assert contents == {"own/mine": b"mine", "own/old": b"new", "more/file": b"x"}


def test_a_damaged_archive_is_named(tmp_path):
    whole = tarred({"inside/file": bytes(100_000)})
    (tmp_path / "a.tar.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RequestError, match=r"cannot extract: .*a\.tar\.gz"):
        extract_archive(tmp_path / "a.tar.gz", tmp_path, ("inside",))


def test_small_data_set_is_downloaded_on_demand(server_url, tmp_path, monkeypatch):
    write_cifar(tmp_path / "made" / "cifar-10-batches-py")
    files = {f"cifar-10-batches-py/{path.name}": path.read_bytes() for path in (tmp_path / "made").rglob("*_batch*")}
    content = tarred(files)
    FileServer.files["cifar-10-python.tar.gz"] = content
    published = Download(
        f"{server_url}/cifar-10-python.tar.gz",
        "",
        len(content),
        hashlib.sha256(content).hexdigest(),
        ("cifar-10-batches-py",),
    )
    monkeypatch.setitem(
        DATASETS, "cifar10", DATASETS["cifar10"].__class__(**{**vars(DATASETS["cifar10"]), "downloads": (published,)})
    )
    dataset = load_dataset(DataSettings(dataset="cifar10"), DataDirs(tmp_path / "data"))
    assert len(dataset) == 120


def test_downloads_have_sizes_and_checksums():
    for name, source in DATASETS.items():
        for download in source.downloads:
            assert download.size_bytes > 0, name
            assert len(download.sha256) == 64, name
            assert int(download.sha256, 16) >= 0


def test_address_and_checksum_of_a_file_are_those_of_one_file():
    by_url: dict[str, set[tuple[int, str]]] = {}
    for download in (download for source in DATASETS.values() for download in source.downloads):
        by_url.setdefault(download.url, set()).add((download.size_bytes, download.sha256))
    assert all(len(facts) == 1 for facts in by_url.values())
    checksums = list(by_url.values())
    assert len(set().union(*checksums)) == len(by_url), "no checksum was copied from another file"


def test_concurrent_download_is_refused(server_url, tmp_path):
    download = publish(server_url, "big.bin", b"0123456789")
    with directory_lock(tmp_path / "set"), pytest.raises(RunStateError, match="another process is writing here"):
        download_files((download,), DataDirs(tmp_path))
    download_files((download,), DataDirs(tmp_path))
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["big.bin"]
