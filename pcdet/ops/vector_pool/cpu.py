from pcdet.ops.vector_pool.reference import *  # noqa: F403
