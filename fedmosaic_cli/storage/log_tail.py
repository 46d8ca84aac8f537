"""Reading a log while somebody else writes it: only what is new, and nothing that is not yet written to the end."""

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
    """The lines of a log that have come since the last look. With a `window`, the first look begins so near the end."""

    def __init__(self, path: Path, initial_bytes: int | None = None) -> None:
        self.path = path
        self.modified_at: float | None = None
        """When the log was last written to; None where there is none."""
        self.is_complete = True
        """Whether the lines read so far are all that the log has."""
        self._initial_bytes = initial_bytes
        self._offset = 0
        self._file_id: tuple[int, int] | None = None
        self._error: RequestError | None = None

    def read_new_lines(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the log is another one than before, so that all of it counts anew, and the lines that have come."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            anew, self._file_id, self.modified_at = self._file_id is not None, None, None
            return anew, []
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise RequestError(f"not a file ({self.path}): move it away")
            anew = self._update_position(status)
            data = os.pread(handle, status.st_size - self._offset, self._offset)
        finally:
            os.close(handle)
        end = data.rfind(b"\n") + 1
        self._offset += end
        first = 1 if anew and not self.is_complete else 0  # the line that the window begins in
        return anew, [self._parse(line) for line in data[:end].splitlines()[first:]]

    def _update_position(self, status: os.stat_result) -> bool:
        """Find out where to read on; whether that is from the beginning. A run that goes back writes its logs anew."""
        file = (status.st_dev, status.st_ino)
        anew = file != self._file_id or status.st_size < self._offset
        self._file_id, self.modified_at = file, status.st_mtime
        if anew:
            self._offset = 0 if self._initial_bytes is None else max(0, status.st_size - self._initial_bytes)
            self.is_complete = self._offset == 0
            self._error = None
        if self._error:
            raise self._error
        if status.st_size - self._offset > MAX_LOG_BYTES:
            raise RequestError(f"the file is too large to be one of ours ({self.path}): at most {MAX_LOG_BYTES} bytes")
        return anew

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            self._error = RequestError(f"cannot read the log ({self.path}): the file is damaged")
            raise self._error
        return content
