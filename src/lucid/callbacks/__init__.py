"""Things that happen beside the loop, built on eight hooks.

`base`: the hooks and what calls them. `early_stopping`: patience. `ema`: averaged weights.
"""

from lucid.callbacks.base import HOOKS, Callback, Callbacks
from lucid.callbacks.early_stopping import EarlyStopping
from lucid.callbacks.ema import EMA

__all__ = ["EMA", "HOOKS", "Callback", "Callbacks", "EarlyStopping"]
