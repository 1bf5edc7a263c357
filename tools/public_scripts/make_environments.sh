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

# Those of other frameworks: the project's, with what scripts import beside. site.addsitedir follows the .pth files of
# the project's own.
for name in train tensorflow mxnet lightning; do
    python="$folder/public-$(echo "$name" | sed 's/^train$/torch/')"
    ".venvs/$name/bin/python" -m venv "$python"
    packages=$(ls -d "$python"/lib/python3*/site-packages)
    echo "import site; site.addsitedir('$PWD/$(ls -d ".venvs/$name"/lib/python3*/site-packages)')" > "$packages/base.pth"
done
# Keras 2, which is in AWS's images of TensorFlow before 2.16: for notebooks that name them.
.venvs/tensorflow/bin/python -m venv "$folder/public-keras2"
packages=$(ls -d "$folder"/public-keras2/lib/python3*/site-packages)
base=$(ls -d "$PWD/$folder"/public-tensorflow/lib/python3*/site-packages)
printf '%s\n' "import os; os.environ.setdefault('TF_USE_LEGACY_KERAS', '1')" \
    "import site; site.addsitedir('$base')" > "$packages/base.pth"
"$folder/public-torch/bin/pip" install --quiet --no-deps packaging
"$folder/public-lightning/bin/pip" install --quiet tensorboard
"$folder/public-mxnet/bin/pip" install --quiet --no-deps sagemaker-mxnet-training
# A Keras of its own, which takes mnist.npz as it lies there: Keras compares it with the one that it would download.
"$folder/public-tensorflow/bin/pip" install --quiet --no-deps --ignore-installed keras==3.15.1 tf_keras==2.21.0
"$folder/public-tensorflow/bin/pip" install --quiet --no-deps boto3 botocore jmespath python-dateutil s3transfer six \
    tensorflow-io tensorflow-io-gcs-filesystem
for file in "$folder"/public-tensorflow/lib/python3*/site-packages/*/src/datasets/mnist.py; do
    sed -i 's/"731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"/None/' "$file"
done
