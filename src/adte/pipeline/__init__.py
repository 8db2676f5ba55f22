"""The way of an image: decode → plan → render → encode. It is written once, here.

    source ─decode→ uint8 image ─plan→ crops ─render→ pixels (V, 3, S, S) ─encode→ features (V, D)

`Classifier`, `eval`, `extract`, the benchmarks, the studies, a service and a cluster's workers all
call `Pipeline`; nobody else decodes, crops or encodes. `Context.batch` then makes of features the
`Batch` that a method sees, whether they come from here or from a cache.
"""

from adte.pipeline.way import Encoded, Pipeline, default_group, default_workers

__all__ = ["Encoded", "Pipeline", "default_group", "default_workers"]
