"""The service: streams behind an address, whose states survive whatever happens to the process.

limits     what is allowed, and the refusals
pictures   images from strangers, opened with care
packing    tensors and states as bytes
streams    one stream: a classifier, what happened to it, and how that is done again
store      the log and the snapshots on disk (SQLite)
recovery   streams as they were, from the newest good snapshot and the log
jobs       what is asked of the engine
keeper     the one who changes streams and writes it down
engine     threads: pictures, the tower, the keeper; service: all of it together
explain    what a prediction was made of
access     tokens, hosts and origins
bodies     what a request brings, within limits
schemas    the bodies of requests and answers, for OpenAPI
routes     the routes of /v1; app: the application around them; run: the process
metrics    figures for Prometheus
admin      what `adte state` does
client     `adte.Client`
"""
