"""Classifiers of whole clouds: slots in a row, a classification head at the end."""

from pcdet.models.cloud_model import CloudModel
from pcdet.models.registry import MODELS
from pcdet.structures.detections import ClassScores


@MODELS.register
class Classifier(CloudModel):
    """Any backbone that ends in what the head reads, then the head (``cls_head``).

    In training it returns losses and accuracy, in evaluation logits (B, K).
    """

    head = "cls_head"
    labels = "class_labels"
    scores = ClassScores
