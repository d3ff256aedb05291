"""Fine-tune a timm model on a folder of images with a folder per class, with timm's own augmentation.

python examples/timm_image_folder.py FOLDER --pretrained            # FOLDER/CLASS/IMAGE; downloads timm's weights
python examples/timm_image_folder.py FOLDER --model test_resnet     # fresh weights: no network
"""

import argparse
from pathlib import Path

import timm
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

import lucid
from lucid.datasets import split_rows


def main() -> None:
    """Train on four fifths of the images, keep the best model by accuracy on the others, and load it back."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--pretrained", action="store_true")
    parser.add_argument("--size", type=int, default=None, help="pixels of a side; None: what the model was made for")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--run-dir", default="runs/timm")
    arguments = parser.parse_args()

    lucid.seed_everything(0)
    classes = sorted(path.name for path in arguments.folder.iterdir() if path.is_dir())
    model = timm.create_model(arguments.model, num_classes=len(classes), pretrained=arguments.pretrained)

    # What the model wants of an image, and timm's augmentation for the training: what it draws for a row depends on
    # (seed, epoch, row) alone, so that a run that was broken off goes on with the same pictures.
    size = {} if arguments.size is None else {"input_size": (3, arguments.size, arguments.size)}
    wanted = timm.data.resolve_data_config(size, model=model)
    seen, plain = (
        timm.data.ImageDataset(
            arguments.folder,
            class_map={name: number for number, name in enumerate(classes)},
            transform=timm.data.create_transform(**wanted, is_training=is_training),
        )
        for is_training in (True, False)
    )
    labels = [label for _, label in seen.reader.samples]
    rows = split_rows(len(labels), validation=0.2, test=0, seed=0, labels=labels)

    groups = lucid.optim.param_groups(model, lr=arguments.lr, weight_decay=0.05)
    trainer = lucid.Trainer(
        model,
        lucid.optim.AdamW(groups, lr=arguments.lr),
        loss=F.cross_entropy,
        scheduler=lambda optimizer, total_steps: lucid.optim.warmup_cosine(optimizer, total_steps // 10, total_steps),
        metrics={"accuracy": lucid.metrics.accuracy},
        config=lucid.TrainConfig(epochs=arguments.epochs, monitor="eval/accuracy", mode="max"),
        run_dir=arguments.run_dir,
        extra_config={"timm": arguments.model, "class_names": classes},
    )
    result = trainer.fit(
        DataLoader(Subset(seen, rows.train), arguments.batch_size, shuffle=True, num_workers=arguments.workers),
        DataLoader(Subset(plain, rows.validation), arguments.batch_size, num_workers=arguments.workers),
    )

    best = lucid.load_model(arguments.run_dir, model=timm.create_model(arguments.model, num_classes=len(classes)))
    image, label = plain[rows.validation[0]]
    answer = best.assets["class_names"][int(best(image[None]).argmax())]
    print(f"best at step {result.best_step} of {result.step}; it takes a held-out {classes[label]!r} for {answer!r}")


if __name__ == "__main__":
    main()
