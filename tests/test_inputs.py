"""A model that cannot take its batch: what it got, where it failed and what is meant stand beside torch's error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lucid.inputs import explained
from lucid.losses import Supervised, UserStep

MLP = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
Z = torch.zeros
BAD: list[tuple[nn.Module, torch.Tensor, str]] = [
    (MLP, Z(4, 64).double(), "It failed in 1 = Linear(in_features=64, out_features=8, bias=True), which got (4, 64) "
     "float64 on cpu. Its weight is float32: use inputs.float()."),
    (MLP, Z(4, 64).long(), "Its weight is float32: use inputs.float()."),
    (MLP, Z(4, 28, 28), "which got (4, 784) float32 on cpu. It takes 64 numbers in the last dimension: change "
     "in_features, or the rows."),
    (nn.Linear(64, 3), Z(4, 8, 8), "It failed in Linear = Linear(in_features=64, out_features=3, bias=True), which got "
     "(4, 8, 8) float32 on cpu. A row is 64 numbers in another shape: put nn.Flatten() before it."),
    (nn.Conv2d(1, 2, 3), Z(4, 8, 8), "The channel is missing: use inputs.unsqueeze(1)."),
    (nn.Conv2d(3, 2, 3), Z(4, 8, 8, 3), "It takes 3 channels in dimension 1; they stand last: use inputs.movedim"),
    (nn.Conv2d(3, 2, 3), Z(4, 1, 8, 8), "It takes 3 channels in dimension 1."),
    (nn.Conv2d(3, 2, 3), Z(4, 3, 8, 8).byte(), "use inputs.float()"),
    (nn.Embedding(5, 3), Z(4, 7), "It looks up whole numbers: use inputs.long()."),
    (nn.Embedding(5, 3), torch.tensor([0, 9]), "Its rows are 0 to 4, got 0 to 9."),
    (nn.Linear(4, 3).half(), Z(4, 4), "Its weight is float16: use inputs.to(torch.float16)."),
    (nn.Linear(4, 3).to("meta"), Z(4, 4), "Its weight is on meta: keep the module where the model is."),
]  # fmt: skip


def note_of(call: Any, *arguments: Any) -> str:
    """Return the one note on the error of a call."""
    with pytest.raises((RuntimeError, IndexError, ValueError)) as caught:
        call(*arguments)
    (note,) = caught.value.__notes__
    return str(note)


@pytest.mark.parametrize(("model", "inputs", "words"), BAD)
def test_layer_that_got_what_it_cannot_take_is_named_with_the_cure(
    model: nn.Module, inputs: torch.Tensor, words: str
) -> None:
    """With the shape and type that it got; in training, in an evaluation, and in a step of the user's."""
    batch = (inputs, torch.zeros(len(inputs), dtype=torch.long))
    notes = {
        note_of(Supervised(F.cross_entropy), model, batch),
        note_of(Supervised(F.cross_entropy).evaluate, model, batch),
        note_of(UserStep(lambda model, batch: model(batch[0])), model, batch),
    }
    assert len(notes) == 1
    assert words in notes.pop()


def test_batch_and_first_parameter_are_described() -> None:
    """Every tensor of a pair or a mapping, up to six, and what the model begins with."""
    note = note_of(Supervised(F.cross_entropy), MLP, (Z(4, 28, 28), Z(4)))
    assert note.startswith(
        "Lucid: the batch was (4, 28, 28) float32 on cpu, (4,) float32 on cpu; the model's first parameter 1.weight is "
        "(8, 64) float32 on cpu. It failed in 1 ="
    )

    class Named(nn.Module):
        def forward(self, **batch: Any) -> Any:
            raise ValueError("no")

    assert note_of(Supervised(None), Named(), {f"x{i}": Z(i) for i in range(8)}) == (
        "Lucid: the batch was " + ", ".join(f"x{i} ({i},) float32 on cpu" for i in range(6)) + " and 2 tensors more. "
        "It failed in Named."
    )


def test_later_batches_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a batch went through, its successors take the short way."""
    calls: list[int] = []

    def watched(*arguments: Any) -> Any:
        calls.append(1)
        return explained(*arguments)

    monkeypatch.setattr("lucid.losses.explained", watched)
    step, model = Supervised(F.cross_entropy), nn.Linear(4, 3)
    for _ in range(3):
        step(model, (Z(4, 4), torch.zeros(4, dtype=torch.long)))
    assert calls == [1]
