"""Every error that Lucid raises on purpose.

LucidError
 |- ConfigError (ValueError)            a setting or an argument is wrong; raised before any work
 |- DataError (ValueError)              a data set, loader or batch is wrong
 |- PrecisionError (ConfigError)        the device lacks the precision asked for, or the model does not fit it
 |- LossError (ValueError)              the loss is not a scalar, has no graph, or does not fit the output
 |- NonFiniteError (ArithmeticError)    NaN or inf in loss or gradient, and the policy says stop
 |- ResumeError                         a run cannot go on from its checkpoint as asked
 |- CallbackError                       a user's callback raised; `__cause__` is its error
 |- RecordError (ValueError)            a record holds what cannot be written, or a line of `records.jsonl` is broken
 |- ReplayError                         a replay bundle does not give the step it recorded
 `- CheckpointError                     anything about `.lcs` files and the folders that hold them
     |- UnsupportedTypeError (TypeError)      at save: an object that cannot be stored, with its path in the state
     |- FormatError (ValueError)              at load: not a `.lcs` file, or a broken one
     |   |- TruncatedError
     |   |- VersionError                      written by a newer major version
     |   `- LimitError                        a length, count or nesting beyond the documented limits
     |- ChecksumError                         bytes changed; names the tensors hit
     |- ClassNotAllowedError (TypeError)      the file names a class that the caller did not allow
     |- MismatchError                         keys, shapes or dtypes differ from the live state
     |- StoreBusyError                        another process writes this folder
     `- SaveFailedError                       a background save failed; `__cause__` is the OSError

A message says what must be what, what came, where, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LucidError(Exception):
    """Base of all errors raised by Lucid on purpose."""


class ConfigError(LucidError, ValueError):
    """A setting or an argument is wrong."""


class DataError(LucidError, ValueError):
    """A data set, loader or batch is wrong."""


class PrecisionError(ConfigError):
    """The device lacks the precision asked for, or the model does not fit it."""


class LossError(LucidError, ValueError):
    """The loss is not a scalar, has no graph, or does not fit the model's output."""


class NonFiniteError(LucidError, ArithmeticError):
    """NaN or inf in the loss or the gradient, and the policy says stop."""


class ResumeError(LucidError):
    """A run cannot go on from its checkpoint as asked."""


class CallbackError(LucidError):
    """A user's callback raised."""


class RecordError(LucidError, ValueError):
    """A record holds what cannot be written, or a line of `records.jsonl` is broken."""


class ReplayError(LucidError):
    """A replay bundle does not give the step that it recorded."""


class CheckpointError(LucidError):
    """Anything about `.lcs` files and the folders that hold them."""


class UnsupportedTypeError(CheckpointError, TypeError):
    """An object in the state cannot be stored; the message has its path."""


class FormatError(CheckpointError, ValueError):
    """The file is not a `.lcs` file, or a broken one."""


class TruncatedError(FormatError):
    """The file is shorter or longer than its own footer says."""


class VersionError(FormatError):
    """The file was written by a version this reader does not know."""


class LimitError(FormatError):
    """A length, count or nesting in the file is beyond the documented limits."""


class ChecksumError(CheckpointError):
    """Bytes in the file changed since it was written."""


class ClassNotAllowedError(CheckpointError, TypeError):
    """The file names a class that the caller did not list in `types`."""


class MismatchError(CheckpointError):
    """Keys, shapes or dtypes in the file differ from the live state."""


class StoreBusyError(CheckpointError):
    """Another live process writes this folder."""


class SaveFailedError(CheckpointError):
    """A save failed after its retries; `__cause__` is the error of the system."""


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the nearest of `known`, or an empty string."""
    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean {match[0]!r}?" if match else ""
