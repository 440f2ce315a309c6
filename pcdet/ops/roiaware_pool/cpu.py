from pcdet.ops.roiaware_pool.reference import *  # noqa: F403
