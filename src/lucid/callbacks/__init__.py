"""Things that happen beside the loop, built on eight hooks.

`base`: the hooks and what calls them. `early_stopping`: patience. `averaging`: averaged weights in evaluations;
`ema` and `swa`: how they are averaged.
"""

from lucid.callbacks.base import HOOKS, Callback, Callbacks
from lucid.callbacks.early_stopping import EarlyStopping
from lucid.callbacks.ema import EMA
from lucid.callbacks.swa import SWA

__all__ = ["EMA", "HOOKS", "SWA", "Callback", "Callbacks", "EarlyStopping"]
