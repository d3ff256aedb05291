# What type checkers see: Lucid's own names, and torch's for the rest.
from torch import *  # noqa: F403
from torch import nn as nn

from lucid import amp as amp
from lucid import callbacks as callbacks
from lucid import config as config
from lucid import dashboard as dashboard
from lucid import datasets as datasets
from lucid import distributed as distributed
from lucid import errors as errors
from lucid import finders as finders
from lucid import metrics as metrics
from lucid import models as models
from lucid import optim as optim
from lucid import records as records
from lucid import replay as replay
from lucid import report as report
from lucid import rng as rng
from lucid import serialization as serialization
from lucid import utils as utils
from lucid.callbacks import EMA as EMA
from lucid.callbacks import Callback as Callback
from lucid.callbacks import EarlyStopping as EarlyStopping
from lucid.check import CallableModule as _CheckModule
from lucid.config import TrainConfig as TrainConfig
from lucid.devices import metal_if_available as metal_if_available
from lucid.evaluation import evaluate as evaluate
from lucid.rng import seed_all as _seed_all
from lucid.run import Run as Run
from lucid.serialization import load as load  # type: ignore[assignment]
from lucid.serialization import save as save  # type: ignore[assignment]
from lucid.trained import load_model as load_model
from lucid.trainer import Result as Result
from lucid.trainer import Trainer as Trainer

seed_everything = _seed_all
check: _CheckModule  # a module that can be called
__version__: str
