"""The commands of the README, one after the other in an empty directory, as a reader types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from fedmosaic_cli.cli.app import COMMANDS

ROOT = Path(__file__).parent.parent
SECTIONS = ("Two commands", "From data to a table", "What to expect of the methods")
MINUTES = re.compile(r"^fedmosaic reproduce .*", re.MULTILINE)
"""Commands that take minutes: the test shows what they would execute."""


def shell_blocks(section: str) -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def readme_script() -> str:
    """Return the commands `fedmosaic` of the sections, without those that install packages."""
    blocks = [block for section in SECTIONS for block in shell_blocks(section)]
    lines = [line.rpartition("&& ")[2] if "pip install" in line else line for line in "".join(blocks).splitlines()]
    commands = "".join(f"{line.partition('  #')[0].strip()}\n" for line in lines if line.startswith("fedmosaic "))
    return MINUTES.sub(r"\g<0> --dry-run", commands)


def test_the_script_has_the_commands_of_the_readme():
    script = readme_script()
    used = {line.split()[1] for line in script.splitlines()}
    assert {"partition", "train", "baseline", "watch", "evaluate", "forecast", "report", "reproduce"} <= used
    assert used <= COMMANDS.keys()
    assert "--resume" not in script


def test_every_command_of_the_readme_succeeds(tmp_path):
    function = f'fedmosaic() {{ "{sys.executable}" -m fedmosaic_cli "$@"; }}\n'
    script = tmp_path / "readme.sh"
    script.write_text(f"set -e\n{function}{readme_script()}")
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["/bin/sh", "-x", str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count("finished already: fedmosaic-entropy seed 0") >= 2
    assert "| Method |" in done.stdout
    assert (folder / "results" / "index.html").is_file()
