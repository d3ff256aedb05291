"""Thousands of changed files with valid checksums: typed errors or a bounded read, nothing else."""

from __future__ import annotations

import pytest

from lucid.serialization import verify

from .fuzzing import CORPUS, attempt, fuzz


def test_every_file_of_the_corpus_is_read_or_refused_as_typed_error() -> None:
    """The corpus holds valid seeds; each of them reads."""
    paths = sorted(CORPUS.glob("*.lcs"))
    assert len(paths) >= 10
    assert {attempt(path.read_bytes()).split()[0] for path in paths} == {"read"}
    assert verify(CORPUS).ok


def test_thousand_changed_files() -> None:
    """A fixed seed: no untyped error, memory bounded by the size of the file."""
    found = fuzz(seed=0, count=1000)
    assert found["num_broken"] == 0, found["broken"]
    assert found["refused"] > 500
    assert found["kinds"] > 5
    assert found["peak_bytes"] < 16 << 20


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_five_thousand_changed_files(seed: int) -> None:
    """The long run of the same."""
    found = fuzz(seed=seed, count=25_000, trace=False)
    print(found)
    assert found["num_broken"] == 0, found["broken"]
    assert found["refused"] > 12_000
