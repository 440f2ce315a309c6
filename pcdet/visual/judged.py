"""What every kind of picture shows: a scene, what was found in it and, where there are labels, what of it is right."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pcdet.structures.calibration import Calibration
from pcdet.structures.detections import Detections
from pcdet.structures.outcomes import Outcomes

# Score thresholds that a viewer's slider offers.
SCORES = tuple(round(0.05 * i, 2) for i in range(20))


@dataclass(frozen=True)
class JudgedScene:
    """One scene.

    ``outcomes[s]`` are the verdicts on all detections and labelled boxes when the detections from score ``s`` on are
    matched; it is empty where nobody judged.
    """

    name: str
    points: np.ndarray  # (N, 3 or more) x y z and perhaps intensity, LiDAR frame
    detections: Detections
    gt_boxes: np.ndarray | None = None  # (G, 7+)
    gt_names: Sequence[str] | None = None  # (G,)
    outcomes: Mapping[float, Outcomes] = field(default_factory=dict)
    calib: Calibration | None = None
    image: Path | None = None

    def above(self, score: float) -> tuple[Detections, Outcomes | None]:
        """The detections from a score on, with the verdicts at that score if there are any.

        Raises ``KeyError`` for a score that was not judged, though others were.
        """
        keep = self.detections.scores >= score
        if not self.outcomes:
            return self.detections[keep], None
        verdicts = self.outcomes[score]
        return self.detections[keep], Outcomes(verdicts.found[keep.cpu().numpy()], verdicts.truth)
