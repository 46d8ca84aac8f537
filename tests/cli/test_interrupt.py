"""Stop signals that arrive where Python ignores exceptions."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

SCRIPT = """
import signal, sys, time, weakref
from fedmosaic_cli.cli.interrupt import InterruptedBySignal, install_signal_handlers

class Thing:
    pass

install_signal_handlers()
thing = Thing()
reference = weakref.ref(thing, lambda _: signal.raise_signal(int(sys.argv[1])))
try:
    del thing  # the exception of the handler is ignored in this callback
    time.sleep(900)
except InterruptedBySignal as error:
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_in_a_callback_that_ignores_exceptions_is_not_lost(signum, exit_code):
    """The import system has such callbacks. A signal during an import must not be lost."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(int(signum))], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (exit_code, "")


def test_other_ignored_exceptions_are_still_reported():
    script = SCRIPT.replace("signal.raise_signal(int(sys.argv[1]))", "1 / 0").replace("time.sleep(900)", "pass")
    done = subprocess.run([sys.executable, "-c", script, "2"], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert "ZeroDivisionError" in done.stderr
