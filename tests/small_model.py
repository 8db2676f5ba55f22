from adte.testing.small import *  # noqa: F403
