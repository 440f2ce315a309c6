"""Segmenters of whole clouds: slots in a row, a head that scores every point at the end."""

from pcdet.models.cloud_model import CloudModel
from pcdet.models.registry import MODELS
from pcdet.structures.detections import PointScores


@MODELS.register
class Segmenter(CloudModel):
    """Any backbone that ends in features of every point, then the head (``seg_head``).

    In training it returns losses and the share of right points, in evaluation logits (B, N, K).
    """

    head = "seg_head"
    labels = "point_labels"
    scores = PointScores
