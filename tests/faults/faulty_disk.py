"""A disk that fails on request, and a machine that stops at that point."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedmosaic_cli.storage import syscalls

ERRORS = {"no space": errno.ENOSPC, "input/output error": errno.EIO, "no permission": errno.EACCES}
# After a kill, written data stays. After a power loss, data that was not flushed is lost.
ENDS = ("killed before", "killed after", "power lost before", "power lost after")
# Only a part is written: the writer continues, or the disk is full.
SHORT = ("short write", "torn write")
KINDS = (*ERRORS, *ENDS, *SHORT)

REQUESTS = (
    "create_file",
    "open_append",
    "write",
    "fsync",
    "rename",
    "hard_link",
    "make_directory",
    "remove_file",
    "remove_directory",
)


class MachineStopped(BaseException):
    """Raised for every request after the machine has stopped."""


class FaultyDisk:
    """Replaces `fedmosaic_cli.storage.syscalls`, counts the calls and makes call number `at` fail as `kind` says.

    `root` is the directory that may lose data; `backup`, on the same file system, keeps replaced files.
    """

    def __init__(self, monkeypatch: Any, root: Path, backup: Path, at: int = 0, kind: str = "") -> None:
        self.requests: list[str] = []
        self.off = False
        self._at = at
        self._kind = kind
        self._root = root
        self._attic = backup
        self._numbers = itertools.count()
        self._lock = threading.RLock()
        self._kept_length: dict[int, int] = {}
        self._undo: list[tuple[Path, Callable[[], None]]] = []
        for name in REQUESTS:
            monkeypatch.setattr(syscalls, name, self._wrap(name, getattr(syscalls, name)))

    def _wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def request(*arguments: Any) -> Any:
            with self._lock:
                if self.off:
                    raise MachineStopped
                self.requests.append(name)
                if len(self.requests) != self._at:
                    return self._done(name, real, arguments)
                return self._fail(name, real, arguments)

        return request

    def _fail(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if self._kind in ERRORS:
            raise OSError(ERRORS[self._kind], os.strerror(ERRORS[self._kind]), str(arguments[0]))
        if self._kind in SHORT:
            if name != "write":
                return self._done(name, real, arguments)
            written = self._done(name, real, (arguments[0], arguments[1][: max(1, len(arguments[1]) // 2)]))
            if self._kind == "torn write":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return written
        if self._kind.endswith("after"):
            with suppress(OSError):  # the call itself may fail
                self._done(name, real, arguments)
        self.off = True
        if self._kind.startswith("power"):
            self._lose_unflushed()
        raise MachineStopped

    def _done(self, name: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if not self._kind.startswith("power"):
            return real(*arguments)
        undo = self._undo_function(name, arguments)
        size = arguments[0].stat().st_size if name == "open_append" and undo is None else 0
        result = real(*arguments)
        if name == "open_append" and undo is None:
            self._kept_length.setdefault(os.fstat(result).st_ino, size)
        elif name in ("create_file", "open_append"):
            self._kept_length[os.fstat(result).st_ino] = 0
        if name == "fsync":
            self._keep(arguments[0])
        elif undo is not None:
            self._undo.append((arguments[-1].parent, undo))
        return result

    def _keep(self, path: Path) -> None:
        if path.is_dir():
            self._undo = [(folder, undo) for folder, undo in self._undo if folder != path]
        else:
            self._kept_length[path.stat().st_ino] = path.stat().st_size

    def _undo_function(self, name: str, arguments: tuple[Any, ...]) -> Callable[[], None] | None:
        """Return a function that undoes a change of names that was not flushed."""
        if name in ("create_file", "hard_link", "make_directory") or (
            name == "open_append" and not arguments[0].exists()
        ):
            return lambda: remove(arguments[-1])
        if name == "rename":
            source, target = arguments
            before = self._copy(target)

            def restore_names() -> None:
                target.rename(source)
                if before is not None:
                    os.link(before, target)

            return restore_names
        if name == "remove_file":
            before = self._copy(arguments[0])
            return lambda: os.link(before, arguments[0]) if before else None
        return arguments[0].mkdir if name == "remove_directory" else None

    def _copy(self, path: Path) -> Path | None:
        if not path.is_file():
            return None
        second_name = self._attic / str(next(self._numbers))
        os.link(path, second_name)
        return second_name

    def _lose_unflushed(self) -> None:
        """Undo names from last to first, then truncate contents."""
        for _, undo in reversed(self._undo):
            undo()
        for path in self._root.rglob("*"):
            if path.is_file() and path.stat().st_ino in self._kept_length:
                os.truncate(path, self._kept_length[path.stat().st_ino])


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
