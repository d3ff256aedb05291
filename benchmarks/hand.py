"""Loops written by hand: the usual one, the best one, and what no loop can beat."""

from __future__ import annotations

import torch
from tasks import BETAS, EPS, LR, MAX_NORM, WEIGHT_DECAY, Task, Timed
from torch import Tensor


def naive(task: Task, **options: bool) -> torch.nn.Module:
    """Train as tutorials do: DataLoader, default AdamW, clip_grad_norm_, scheduler, `loss.item()` each step."""
    model = task.model()
    optimizer = task.optimizer(model, **options)
    scheduler, loader = task.scheduler(optimizer), task.loader()
    model.train()
    for _ in range(task.epochs):
        total = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = task.loss(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            optimizer.step()
            scheduler.step()
            total += loss.item()
    return model


def naive_fused(task: Task) -> torch.nn.Module:
    """Train as tutorials do, with the fused AdamW."""
    return naive(task, fused=True)


def best(task: Task) -> torch.nn.Module:
    """The best loop with torch's public interface: rows by index, fused AdamW, one norm, no host read of the loss."""
    model = task.model()
    optimizer = task.optimizer(model, fused=True)
    parameters, group = list(model.parameters()), optimizer.param_groups[0]
    rates, step, losses = [LR * task.factor(step) for step in range(task.steps)], 0, []
    x, y, loss_of = task.x, task.y, task.loss
    model.train()
    for order in task.orders:
        for index in order.split(task.batch_size):
            loss = loss_of(model(x.index_select(0, index)), y.index_select(0, index))
            loss.backward()
            gradients = [parameter.grad for parameter in parameters]
            _clip(gradients)
            group["lr"] = rates[step]
            optimizer.step()
            for parameter in parameters:
                parameter.grad = None
            losses.append(loss.detach())
            step += 1
    return model


def _clip(gradients: list[Tensor]) -> None:
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    if norm > MAX_NORM:
        torch._foreach_mul_(gradients, MAX_NORM / (norm + 1e-6))


def limit(task: Task) -> torch.nn.Module:
    """What no loop can beat: one flat buffer, torch's private kernel called directly, one gather per epoch."""
    model = task.model()
    parameters = list(model.parameters())
    flat, grads = _flatten(parameters)
    means, squares, count = [torch.zeros_like(flat)], [torch.zeros_like(flat)], [torch.zeros(())]
    rates, step, losses = [LR * task.factor(step) for step in range(task.steps)], 0, []
    loss_of, size = task.loss, task.batch_size
    model.train()
    for order in task.orders:
        xs, ys = task.x.index_select(0, order).split(size), task.y.index_select(0, order).split(size)
        for x, y in zip(xs, ys, strict=True):
            loss = loss_of(model(x), y)
            loss.backward()
            with torch.no_grad():
                norm = torch.linalg.vector_norm(grads)
                if norm > MAX_NORM:
                    grads.mul_(MAX_NORM / (norm + 1e-6))
                count[0] += 1
                torch._fused_adamw_(
                    [flat], [grads], means, squares, [], count, lr=rates[step], beta1=BETAS[0], beta2=BETAS[1],
                    weight_decay=WEIGHT_DECAY, eps=EPS, amsgrad=False, maximize=False,
                )  # fmt: skip
                grads.zero_()
            losses.append(loss.detach())
            step += 1
    return model


def _flatten(parameters: list[torch.nn.Parameter]) -> tuple[Tensor, Tensor]:
    """Make all parameters, and their gradients, views of one tensor each."""
    flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
    grads, start = torch.zeros_like(flat), 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = flat[start:end].view(parameter.shape)
        parameter.grad = grads[start:end].view(parameter.shape)
        start = end
    return flat, grads


def compiled(task: Task) -> torch.nn.Module:
    """The best loop with the whole step in one compiled function; the learning rate is a tensor."""
    model = task.model()
    parameters = list(model.parameters())
    rate = torch.tensor(LR)
    optimizer = torch.optim.AdamW(parameters, lr=rate, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY)
    rates, step, losses = [LR * task.factor(step) for step in range(task.steps)], 0, []
    loss_of = torch.nn.functional.cross_entropy

    def forward_backward(x: Tensor, y: Tensor) -> Tensor:
        loss = loss_of(model.compute(x), y.flatten())
        loss.backward()
        gradients = [parameter.grad for parameter in parameters]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, torch.clamp(MAX_NORM / (norm + 1e-6), max=1.0))
        optimizer.step()
        return loss.detach()

    whole = torch.compile(forward_backward)
    model.train()
    for order in task.orders:
        for index in order.split(task.batch_size):
            Timed.marks.note()
            rate.fill_(rates[step])
            loss = whole(task.x.index_select(0, index), task.y.index_select(0, index))
            for parameter in parameters:
                parameter.grad = None
            losses.append(loss)
            if Timed.marks.losses is not None:
                Timed.marks.losses.append(loss.item())
            step += 1
    return model
