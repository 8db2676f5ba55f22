"""Speed and memory on this machine: one module a question, each with `run(...) -> dict`.

A result is {"rows": [{"name", "seconds", "ratio", …}], "ratio", "meaning"}; `adte bench` prints it.
Modules: views, head, prior, encode, pipeline, cost.
"""
