"""The peers, each as its own guide writes the same training.

`default=False` is the fast setting that its documentation offers: logging, checkpoints and progress off where the
library lets one, and torch's fused AdamW. `default=True` is the library as it comes, writing into a temporary folder,
with the optimizer as torch makes it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from tasks import BETAS, EPS, LR, MAX_NORM, WEIGHT_DECAY, FixedOrder, Task
from torch import nn

os.environ["KERAS_BACKEND"] = "torch"


def lightning(task: Task, default: bool) -> None:
    """Lightning's Trainer with a LightningModule."""
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model()

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            x, y = batch
            loss = task.loss(self.model(x), y)
            if default:
                self.log("train_loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = task.optimizer(self.model, **_kernel(default))
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": task.scheduler(optimizer), "interval": "step"},
            }

    names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet = {} if default else dict.fromkeys(names, False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=1, max_epochs=task.epochs, gradient_clip_val=MAX_NORM, default_root_dir=folder,
            **quiet,
        )  # fmt: skip
        trainer.fit(Module(), task.loader())


def fabric(task: Task, default: bool) -> None:
    """A loop of one's own with Lightning Fabric."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    plain = task.model()
    optimizer = task.optimizer(plain, **_kernel(default))
    scheduler = task.scheduler(optimizer)
    model, optimizer = fabric.setup(plain, optimizer)
    loader = fabric.setup_dataloaders(task.loader())
    model.train()
    for _ in range(task.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = task.loss(model(x), y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=MAX_NORM)
            optimizer.step()
            scheduler.step()


def accelerate(task: Task, default: bool) -> None:
    """A loop of one's own with Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    plain = task.model()
    optimizer = task.optimizer(plain, **_kernel(default))
    model, optimizer, loader, scheduler = accelerator.prepare(
        plain, optimizer, task.loader(), task.scheduler(optimizer)
    )
    model.train()
    for _ in range(task.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = task.loss(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            scheduler.step()


def hf(task: Task, default: bool) -> None:
    """Hugging Face's Trainer; its own default optimizer is the fused AdamW."""
    import transformers

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = task.model()

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            output = self.model(x)
            return {"loss": task.loss(output, labels), "logits": output}

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(task.x)

        def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
            return {"x": task.x[row], "labels": task.y[row]}

    class Trainer(transformers.Trainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return FixedOrder(task.lists)

    model = Wrapped()
    optimizer = task.optimizer(model, fused=True)
    quiet: dict[str, Any] = {"logging_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
    with tempfile.TemporaryDirectory() as folder:
        options = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=task.batch_size, num_train_epochs=task.epochs, use_cpu=True,
            max_grad_norm=MAX_NORM, report_to=[], remove_unused_columns=False, dataloader_drop_last=True,
            **({} if default else quiet),
        )  # fmt: skip
        Trainer(model, options, train_dataset=Rows(), optimizers=(optimizer, task.scheduler(optimizer))).train()


def ignite(task: Task, default: bool) -> None:
    """Ignite's Engine around an update function."""
    from ignite.contrib.handlers import ProgressBar
    from ignite.engine import Engine, Events

    model = task.model()
    optimizer = task.optimizer(model, **_kernel(default))
    scheduler = task.scheduler(optimizer)

    def update(engine: Any, batch: Any) -> Any:
        model.train()
        optimizer.zero_grad()
        x, y = batch
        loss = task.loss(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        return loss.item() if default else loss.detach()

    engine = Engine(update)
    engine.add_event_handler(Events.ITERATION_COMPLETED, lambda: scheduler.step())
    if default:
        ProgressBar().attach(engine)
    engine.run(task.loader(), max_epochs=task.epochs)


def skorch(task: Task, default: bool) -> None:
    """Skorch's NeuralNet."""
    import skorch
    from skorch.callbacks import GradientNormClipping, LRScheduler

    class Criterion(nn.Module):
        def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return task.loss(output, target)

    quiet = {} if default else {"callbacks__print_log": None, "verbose": 0}
    net = skorch.NeuralNet(
        task.model(), criterion=Criterion, optimizer=torch.optim.AdamW, lr=LR, optimizer__betas=BETAS,
        optimizer__eps=EPS, optimizer__weight_decay=WEIGHT_DECAY, max_epochs=task.epochs, batch_size=task.batch_size,
        iterator_train__sampler=FixedOrder(task.lists), train_split=None,
        callbacks=[
            ("clip", GradientNormClipping(MAX_NORM)),
            ("lr", LRScheduler(torch.optim.lr_scheduler.LambdaLR, step_every="batch", lr_lambda=task.factor)),
        ],
        **{f"optimizer__{name}": value for name, value in _kernel(default).items()}, **quiet,
    )  # fmt: skip
    net.fit(task.dataset(), None)


def keras(task: Task, default: bool) -> None:
    """Keras 3 on torch, its own AdamW and clipping."""
    import keras

    class Rate(keras.optimizers.schedules.LearningRateSchedule):
        def __call__(self, step: Any) -> float:
            return LR * task.factor(int(step))

    class Wrapped(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.TorchModuleWrapper(task.model())

        def call(self, x: Any, training: bool = True) -> Any:
            return self.inner(x, training=training)

    model = Wrapped()
    model.compile(
        optimizer=keras.optimizers.AdamW(
            Rate(), weight_decay=WEIGHT_DECAY, beta_1=BETAS[0], beta_2=BETAS[1], epsilon=EPS, global_clipnorm=MAX_NORM
        ),
        loss=lambda target, output: task.loss(output, target.long()),  # Keras casts targets to float
    )
    # Keras takes one batch to build the model with and then begins anew, which counts as an epoch for the sampler.
    model.fit(task.loader(first=-1), epochs=task.epochs, verbose="auto" if default else 0)


def pytorch_accelerated(task: Task, default: bool) -> None:
    """pytorch-accelerated's Trainer; clipping by norm needs its method overridden."""
    from pytorch_accelerated import Trainer
    from pytorch_accelerated import trainer as module

    class Clipping(Trainer):
        def _clip_gradients(self) -> None:
            self._accelerator.clip_grad_norm_(self.model.parameters(), self.run_config.gradient_clip_value)

    model = task.model()
    optimizer = task.optimizer(model, **_kernel(default))
    callbacks = module.DEFAULT_CALLBACKS if default else (module.MoveModulesToDeviceCallback,)
    trainer = Clipping(model=model, loss_func=task.loss, optimizer=optimizer, callbacks=callbacks)
    options = {"shuffle": False, "sampler": FixedOrder(task.lists)} | ({} if default else {"num_workers": 0})
    trainer.train(
        train_dataset=task.dataset(), num_epochs=task.epochs, per_device_batch_size=task.batch_size,
        gradient_clip_value=MAX_NORM, create_scheduler_fn=lambda optimizer: task.scheduler(optimizer),
        train_dataloader_kwargs=options,
    )  # fmt: skip


def _kernel(default: bool) -> dict[str, bool]:
    return {} if default else {"fused": True}


PEERS: dict[str, Callable[[Task, bool], None]] = {
    "lightning": lightning,
    "fabric": fabric,
    "accelerate": accelerate,
    "hf": hf,
    "ignite": ignite,
    "skorch": skorch,
    "keras": keras,
    "pytorch_accelerated": pytorch_accelerated,
}
# What is loaded before anything is timed; every entrant but Lucid and the limit also makes an optimizer of torch.
MODULES = {
    "lightning": ["lightning"],
    "fabric": ["lightning.fabric"],
    "accelerate": ["accelerate"],
    "hf": ["transformers", "transformers.trainer"],
    "ignite": ["ignite.contrib.handlers", "ignite.engine"],
    "skorch": ["skorch", "skorch.callbacks"],
    "keras": ["keras"],
    "pytorch_accelerated": ["pytorch_accelerated", "pytorch_accelerated.trainer"],
}
