#!/bin/sh
# Make the environments of public scripts that the project does not have: sh tools/public_scripts/make_environments.sh
set -e
cd "$(dirname "$0")/../.."
folder=.cache/public-scripts/environments
mkdir -p "$folder"
python="$folder/public-trainer"
.venvs/trainer/bin/python -m venv "$python"
packages=$(ls -d "$python"/lib/python3*/site-packages)
echo "$PWD/$(ls -d .venvs/train/lib/python3*/site-packages)" > "$packages/base.pth"
# setuptools: the last with pkg_resources, which transformers 4.28 and visdom ask for.
"$python/bin/pip" install --quiet "setuptools<81" wheel
"$python/bin/pip" install --quiet "setuptools<81" torch==2.13.0 torchvision==0.28.0 transformers==4.28.1 \
    accelerate==0.20.3 datasets==2.21.0 h5py scikit-learn psutil tensorboard py3nvml smart_open humanize einops evaluate \
    sentencepiece
"$python/bin/pip" install --quiet --no-deps --no-build-isolation torchnet visdom
"$python/bin/pip" install --quiet tornado websocket-client networkx jsonpatch scipy six sagemaker-training
# torchvision is the base's, whose operators tools/torchvision_operators.py has declared.
"$python/bin/python" -W ignore -c "import torchnet.dataset, torchvision, transformers"
