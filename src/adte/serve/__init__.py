"""The service: streams behind an address, whose states survive whatever happens to the process.

limits         the most that a request may ask for, and the refusals
pictures       images from strangers, opened with care
packing        tensors and states as bytes
settings       the settings and the events of a stream; streams: a classifier behind an address
database       the database on disk (SQLite); store: the rows of streams
recovery       streams from the newest good snapshot and the log
jobs           the jobs of the engine
writer         the one thread that changes streams and writes the changes down
engine         threads: pictures, the tower, the writer; service: all of it together
explain        the views and numbers behind a prediction
access         tokens, hosts and origins
request_body   bodies of requests, within limits; responses: answers as JSON
schemas        bodies of requests and answers, for OpenAPI
routes         the routes of /v1; app: the application around them; run: the process
metrics        figures for Prometheus
admin          the actions of `adte state`
client         `adte.Client`; wire: its requests, sent again where that is safe
"""
