"""Reading a JSONL log that another process is writing: only new and complete lines."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

MAX_LOG_BYTES = 1 << 30


class LogTail:
    """Reads the lines that were added to a log since the last read.

    Args:
        path: The log, which need not exist yet.
        initial_bytes: Read only this many bytes from the end on the first read; None reads everything.

    Attributes:
        modified_at: Time of the last write to the log; None if it does not exist.
        is_complete: Whether reading started at the beginning of the log.
    """

    def __init__(self, path: Path, initial_bytes: int | None = None) -> None:
        self.path = path
        self.modified_at: float | None = None
        self.is_complete = True
        self._initial_bytes = initial_bytes
        self._offset = 0
        self._file_id: tuple[int, int] | None = None
        self._error: RequestError | None = None

    def read_new_lines(self) -> tuple[bool, list[dict[str, Any]]]:
        """Return whether the log was replaced, so that earlier lines are void, and the new lines."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            is_new, self._file_id, self.modified_at = self._file_id is not None, None, None
            return is_new, []
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise RequestError(f"not a file ({self.path}): move it away")
            is_new = self._update_position(status)
            data = os.pread(fd, status.st_size - self._offset, self._offset)
        finally:
            os.close(fd)
        end = data.rfind(b"\n") + 1
        self._offset += end
        first = 1 if is_new and not self.is_complete else 0  # the first line may be cut
        return is_new, [self._parse(line) for line in data[:end].splitlines()[first:]]

    def _update_position(self, status: os.stat_result) -> bool:
        """Set the read position; return whether it was reset. A run that is rolled back rewrites its logs."""
        file_id = (status.st_dev, status.st_ino)
        is_new = file_id != self._file_id or status.st_size < self._offset
        self._file_id, self.modified_at = file_id, status.st_mtime
        if is_new:
            self._offset = 0 if self._initial_bytes is None else max(0, status.st_size - self._initial_bytes)
            self.is_complete = self._offset == 0
            self._error = None
        if self._error:
            raise self._error
        if status.st_size - self._offset > MAX_LOG_BYTES:
            raise RequestError(f"the file is too large for fedmosaic ({self.path}): at most {MAX_LOG_BYTES} bytes")
        return is_new

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            self._error = RequestError(f"cannot read the log ({self.path}): the file is damaged")
            raise self._error
        return content
