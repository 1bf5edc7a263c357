"""SageMaker's built-in algorithms, whose images bring the program: XGBoost, which runs here, and others, which do not.

Where: the service resolves and refuses images with it, launchers start the program of XGBoost. Pure.
Source: names and accounts of images in the SageMaker SDK v2 (`sagemaker/image_uri_config/*.json`); developer guide,
"XGBoost algorithm with Amazon SageMaker AI".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

XGBOOST = "sagemaker-xgboost"
_LEGACY_XGBOOST = "xgboost"  # repository of release 0.72, in accounts of AWS
_LEGACY_ACCOUNTS = frozenset(
    {
        *("104374241257", "106583098589", "226302683700", "237065988967", "249704162688", "257386234256"),
        *("272398656194", "286214385809", "306986355934", "387376663083", "390948362332", "433757028032"),
        *("455444449433", "469771592824", "475088953585", "490574956308", "501404015308", "544295431143"),
        *("628508329040", "632365934929", "644912444149", "669576153137", "680994064768", "685385470294"),
        *("749696950732", "765400339828", "811284229777", "813361260812", "825641698319", "855470959533"),
        *("867004704886", "951798379941", "991648021394"),
    }
)
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)-")
_FIRST_OWN_FORMAT = (1, 3)  # release of the image whose model is in xgboost's own format; earlier ones pickle it

# Repository -> the algorithm's name in the developer guide.
OTHER_ALGORITHMS: Mapping[str, str] = {
    "blazingtext": "BlazingText",
    "factorization-machines": "Factorization Machines",
    "forecasting-deepar": "DeepAR Forecasting",
    "image-classification": "Image Classification - MXNet",
    "ipinsights": "IP Insights",
    "kmeans": "K-Means",
    "knn": "K-Nearest Neighbors",
    "lda": "Latent Dirichlet Allocation",
    "linear-learner": "Linear Learner",
    "ntm": "Neural Topic Model",
    "object-detection": "Object Detection - MXNet",
    "object2vec": "Object2Vec",
    "pca": "Principal Component Analysis",
    "randomcutforest": "Random Cut Forest",
    "semantic-segmentation": "Semantic Segmentation",
    "seq2seq": "Sequence-to-Sequence",
}


def is_xgboost(image: str) -> bool:
    """Whether an image brings the algorithm XGBoost: `sagemaker-xgboost`, or AWS's `xgboost` of release 0.72."""
    repository, _ = _parts(image)
    last = repository.rpartition("/")[2]
    if last == XGBOOST:
        return True
    account = repository.partition(".")[0]
    return last == _LEGACY_XGBOOST and repository.count("/") == 1 and account in _LEGACY_ACCOUNTS


def pickles_model(image: str) -> bool:
    """Whether the image of XGBoost writes its model as a pickle, as all releases before 1.3 do."""
    repository, tag = _parts(image)
    version = _VERSION.match(tag)
    if version is None:
        return repository.rpartition("/")[2] == _LEGACY_XGBOOST
    return (int(version.group(1)), int(version.group(2))) < _FIRST_OWN_FORMAT


def _parts(image: str) -> tuple[str, str]:
    """Return the name with its registry, and the tag."""
    name = image.partition("@")[0]
    before, slash, last = name.rpartition("/")
    repository, _, tag = last.partition(":")
    return f"{before}{slash}{repository}", tag
