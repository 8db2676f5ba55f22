"""Speed and memory on this machine: one module per question, each with `run(...) -> dict`.

A result is {"rows": [{"name", "seconds", "ratio", …}], "ratio", "meaning"} with the conditions it
holds under: device, dtype, kernel of the views, threads, processor. `adte bench` prints it.
Modules: rate, growth, stream, step, views, head, prior, encode, pipeline, cost; `limit` is what
they are held against.
"""
