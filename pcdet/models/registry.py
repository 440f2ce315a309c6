"""One registry a slot of a model."""

from pcdet.utils.registry import Registry

MODELS = Registry("model")
VFES = Registry("VFE")
BACKBONES_3D = Registry("BACKBONE_3D")
MAPS_TO_BEV = Registry("MAP_TO_BEV")
BACKBONES_2D = Registry("BACKBONE_2D")
PFES = Registry("PFE")
DENSE_HEADS = Registry("DENSE_HEAD")
POINT_HEADS = Registry("POINT_HEAD")
ROI_HEADS = Registry("ROI_HEAD")
CLS_HEADS = Registry("CLS_HEAD")
SEG_HEADS = Registry("SEG_HEAD")

# The YAML's block, the model's attribute (and so the prefix of its parameters), the registry. They are built in this
# order, which is the order of the parameters in OpenPCDet; a detector may run them in another.
SLOTS = {
    "VFE": ("vfe", VFES),
    "BACKBONE_3D": ("backbone_3d", BACKBONES_3D),
    "MAP_TO_BEV": ("map_to_bev_module", MAPS_TO_BEV),
    "PFE": ("pfe", PFES),
    "BACKBONE_2D": ("backbone_2d", BACKBONES_2D),
    "DENSE_HEAD": ("dense_head", DENSE_HEADS),
    "POINT_HEAD": ("point_head", POINT_HEADS),
    "ROI_HEAD": ("roi_head", ROI_HEADS),
    "CLS_HEAD": ("cls_head", CLS_HEADS),
    "SEG_HEAD": ("seg_head", SEG_HEADS),
}
