"""Progress of runs: a moving bar on a terminal, a plain line a round in a pipe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedmosaic_cli.cli.console import err, remark

if TYPE_CHECKING:
    from collections.abc import Collection
    from types import TracebackType

    from fedmosaic_cli.runner.run import Begun, RoundDone


ROOM_FOR_A_BAR = 100
WAYS = {"threads": "one by one", "stacked": "stacked", "stacked and threads": "stacked where they are alike"}


class View(Protocol):
    """Shows how far the runs are."""

    def __enter__(self) -> View: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, label: str, rounds: int) -> None: ...

    def tell(self, begun: Begun) -> None: ...

    def skip_to(self, number: int) -> None: ...

    def wait_for(self, clients: Collection[int]) -> None: ...

    def update(self, done: RoundDone) -> None: ...


def view(quiet: bool, runs: int) -> View:
    """The view that suits where stderr goes."""
    if quiet:
        return Silent()
    return Bars(runs) if sys.stderr.isatty() else Lines(runs)


class Silent:
    """Shows nothing."""

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def begin(self, label: str, rounds: int) -> None:
        return None

    def tell(self, begun: Begun) -> None:
        return None

    def skip_to(self, number: int) -> None:
        return None

    def wait_for(self, clients: Collection[int]) -> None:
        return None

    def update(self, done: RoundDone) -> None:
        return None


class Lines(Silent):
    """A plain line a round."""

    def __init__(self, runs: int) -> None:
        self._runs = runs
        self._number = 0
        self._label = ""
        self._rounds = 0
        self._missing: set[int] = set()

    def begin(self, label: str, rounds: int) -> None:
        self._number += 1
        self._rounds = rounds
        self._label = f"[{self._number}/{self._runs}] {label}" if self._runs > 1 else label

    def tell(self, begun: Begun) -> None:
        remark(f"{self._label}  {how(begun)}")

    def skip_to(self, number: int) -> None:
        remark(f"{self._label}  resumed after round {number}")

    def wait_for(self, clients: Collection[int]) -> None:
        if set(clients) != self._missing:  # a line a change, not one a look
            self._missing = set(clients)
            remark(f"{self._label}  {waiting(clients)}")

    def update(self, done: RoundDone) -> None:
        tell_left_out(done)
        remark(f"{self._label}  round {done.round}/{self._rounds}  {values(done)}  {done.seconds:.2f} s")


class Bars(Silent):
    """One bar for the runs, where there are several, and one for the rounds of the present run, with the time to go."""

    def __init__(self, runs: int) -> None:
        console = err()
        bar = [BarColumn(bar_width=16)] if console.width >= ROOM_FOR_A_BAR else []
        columns = (
            TextColumn("{task.description}", markup=False),
            *bar,
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}", markup=False),
            TextColumn("eta"),
            TimeRemainingColumn(compact=True),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._runs = self._progress.add_task("runs", total=runs, values="") if runs > 1 else None
        self._rounds = self._progress.add_task("", total=None, values="")
        self._begun = 0
        self._told = ""

    def __enter__(self) -> View:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, label: str, rounds: int) -> None:
        if self._runs is not None:
            self._progress.update(self._runs, completed=self._begun)
        self._begun += 1
        self._progress.reset(self._rounds, description=label, total=rounds, values="preparing")

    def tell(self, begun: Begun) -> None:
        if how(begun) != self._told:  # once, where many runs are made in the same way
            self._told = how(begun)
            self._progress.console.print(self._told, markup=False, highlight=False)

    def skip_to(self, number: int) -> None:
        self._progress.update(self._rounds, completed=number)

    def wait_for(self, clients: Collection[int]) -> None:
        self._progress.update(self._rounds, values=waiting(clients))

    def update(self, done: RoundDone) -> None:
        tell_left_out(done)
        self._progress.update(self._rounds, completed=done.round, values=values(done, "acc"))


def waiting(clients: Collection[int]) -> str:
    """Who is not there yet."""
    return f"waiting for client {', '.join(map(str, sorted(clients)))}"


def tell_left_out(done: RoundDone) -> None:
    """Name the clients that could not take part; their rounds are not like the others'."""
    for client, reason in done.lost.items():
        remark(f"warning: lost in round {done.round}: client {client}, {reason}")
    if done.left_out:
        who = ", ".join(map(str, done.left_out))
        remark(f"warning: left out of round {done.round}, diverged: client {who}")


def how(begun: Begun) -> str:
    """Where and in which way clients are run."""
    workers = f"{begun.workers} worker{'' if begun.workers == 1 else 's'}"
    return f"on {', '.join(map(str, begun.devices))}: clients {WAYS[begun.execution]}, {workers}"


def values(done: RoundDone, accuracy: str = "accuracy") -> str:
    """The numbers of a round."""
    trust = "" if done.trust is None else f"  lambda {done.trust:.3f}"
    return f"{accuracy} {100 * done.accuracy:.2f}%{trust}"
