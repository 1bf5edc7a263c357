"""Data of a channel as xgboost's matrices."""

from clary.train.boosting.script_mode import get_content_type, get_dmatrix, get_size

__all__ = ["get_content_type", "get_dmatrix", "get_size"]
