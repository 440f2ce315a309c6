"""Box coders by the name that BOX_CODER gives."""

from collections.abc import Mapping
from typing import Any, Literal, TypedDict

from pcdet.models.box_coders.previous import PreviousResidualDecoder, PreviousResidualRoIDecoder
from pcdet.models.box_coders.residual import ResidualCoder

AnchorCoderName = Literal["ResidualCoder", "PreviousResidualDecoder", "PreviousResidualRoIDecoder"]
AnchorCoder = ResidualCoder | PreviousResidualDecoder | PreviousResidualRoIDecoder

CODERS = {cls.__name__: cls for cls in (ResidualCoder, PreviousResidualDecoder, PreviousResidualRoIDecoder)}


class AnchorCoderConfig(TypedDict, total=False):
    """The block BOX_CODER_CONFIG; only ResidualCoder has this option."""

    encode_angle_by_sincos: bool


def anchor_coder(config: Mapping[str, Any]) -> AnchorCoder:
    """The coder that BOX_CODER and BOX_CODER_CONFIG of a block describe: codes of boxes relative to boxes.

    Raises ``ValueError`` for an option that the coder does not have.
    """
    name, options = config.get("BOX_CODER", "ResidualCoder"), config.get("BOX_CODER_CONFIG", {})
    if options and name != "ResidualCoder":
        raise ValueError(f"BOX_CODER_CONFIG: {name} takes no options, not {', '.join(options)}; ResidualCoder does")
    return CODERS[name](**options)
