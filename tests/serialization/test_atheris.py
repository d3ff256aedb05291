"""Changed files by a fuzzer that is guided by coverage: typed errors or a bounded read, nothing else."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from .fuzzing import CORPUS, attempt

TESTS = Path(__file__).parents[1]


def test_each_small_seed_is_read() -> None:
    """A few dozen small valid files, each with another part of the format."""
    paths = sorted((CORPUS / "small").glob("*.lcs"))
    assert len(paths) > 40
    assert {attempt(path.read_bytes()).split()[0] for path in paths} == {"read"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is not installed: the extra fuzz")
def test_guided_fuzzing(tmp_path: Path) -> None:
    """Twenty thousand files; the fuzzer stops with another code at the first that breaks the rule."""
    new = tmp_path / "new"
    new.mkdir()
    options = ["-atheris_runs=20000", "-seed=1", "-max_len=16384", f"-artifact_prefix={tmp_path}/"]
    command = [sys.executable, "-m", "serialization.atheris_fuzz", *options, str(new), str(CORPUS / "small")]
    done = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["files"] >= 20_000
    assert 10_000 < found["refused"] < found["files"]
    assert set(found["errors"]) > {"read", "FormatError", "LimitError", "VersionError", "ChecksumError"}
