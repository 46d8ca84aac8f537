"""Reading a log while somebody else writes it: only what is new, and nothing that is not yet written to the end."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING, Any

from fedmosaic_cli.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

LARGEST_LOG = 1 << 30


class Tail:
    """The lines of a log that have come since the last look. With a `window`, the first look begins so near the end."""

    def __init__(self, path: Path, window: int | None = None) -> None:
        self.path = path
        self.modified: float | None = None
        """When the log was last written to; None where there is none."""
        self.from_start = True
        """Whether the lines read so far are all that the log has."""
        self._window = window
        self._offset = 0
        self._file: tuple[int, int] | None = None
        self._damage: RequestError | None = None

    def new_lines(self) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the log is another one than before, so that all of it counts anew, and the lines that have come."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            anew, self._file, self.modified = self._file is not None, None, None
            return anew, []
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise RequestError(f"not a file ({self.path}): move it away")
            anew = self._begin(status)
            data = os.pread(handle, status.st_size - self._offset, self._offset)
        finally:
            os.close(handle)
        end = data.rfind(b"\n") + 1
        self._offset += end
        first = 1 if anew and not self.from_start else 0  # the line that the window begins in
        return anew, [self._parse(line) for line in data[:end].splitlines()[first:]]

    def _begin(self, status: os.stat_result) -> bool:
        """Find out where to read on; whether that is from the beginning. A run that goes back writes its logs anew."""
        file = (status.st_dev, status.st_ino)
        anew = file != self._file or status.st_size < self._offset
        self._file, self.modified = file, status.st_mtime
        if anew:
            self._offset = 0 if self._window is None else max(0, status.st_size - self._window)
            self.from_start = self._offset == 0
            self._damage = None
        if self._damage:
            raise self._damage
        if status.st_size - self._offset > LARGEST_LOG:
            raise RequestError(f"the file is too large to be one of ours ({self.path}): at most {LARGEST_LOG} bytes")
        return anew

    def _parse(self, line: bytes) -> dict[str, Any]:
        try:
            content = json.loads(line)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            self._damage = RequestError(f"cannot read the log ({self.path}): the file is damaged")
            raise self._damage
        return content
