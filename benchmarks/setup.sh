#!/bin/sh
# Make .venv-bench: Lucid and the libraries that it is compared with. Nothing of it is needed to use or test Lucid.
#
# torch comes first, and is then a constraint, so that no peer can exchange it for another build. To take the build for
# the CPU from an index of its own: LUCID_BENCH_INDEX=https://download.pytorch.org/whl/cpu
set -eu
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
torch="${LUCID_BENCH_TORCH:-torch==2.13.0}"

[ -x .venv-bench/bin/python ] || "$python" -m venv .venv-bench
pip=".venv-bench/bin/python -m pip install -q --disable-pip-version-check"
$pip "$torch" ${LUCID_BENCH_INDEX:+--index-url "$LUCID_BENCH_INDEX"}
version=$(.venv-bench/bin/python -c 'import torch; print(torch.__version__)')
constraint=$(mktemp)
trap 'rm -f "$constraint"' EXIT
echo "torch==$version" > "$constraint"
export PIP_CONSTRAINT="$constraint${PIP_CONSTRAINT:+ $PIP_CONSTRAINT}"
$pip -e '.[demo]' matplotlib
# What the peers need besides torch, named here so that `--no-deps` below leaves nothing out.
$pip torchmetrics lightning-utilities fsspec packaging PyYAML tqdm psutil safetensors huggingface-hub tokenizers \
    regex requests tabulate scikit-learn absl-py h5py namex optree ml-dtypes rich func-to-script typing-extensions typer
$pip --no-deps lightning==2.6.6 accelerate==1.15.0 transformers==5.24.0 pytorch-ignite==0.5.5 skorch==1.4.0 \
    keras==3.15.1 pytorch-accelerated==0.1.61
.venv-bench/bin/python -c 'import torch; assert torch.__version__ == "'"$version"'", torch.__version__'
touch .venv-bench/.ready
