from pcdet.ops.roipoint_pool.reference import *  # noqa: F403
