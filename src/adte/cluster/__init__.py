"""Past one machine: the same work on a Ray cluster, with the results of one machine.

connect   one sentence for what can go wrong before anything runs; the cluster's options
worker    what every worker does: open the model once, then the one way of an image
pool      workers that take chunks of images and give them back in order
extract   a cache of features: workers encode, the driver alone writes, in order
label     `predict`: workers encode, one owner learns, in key order
tasks     methods × seeds × settings, as tasks over shared features
deploy    the service on Ray Serve: replicas of the tower, one owner of the streams

A worker runs `Pipeline` and nothing else. Whatever has an order (writing shards, learning, a
stream's log) has one owner, which takes results in the order of their keys. What a
dead worker had under way is done again by another, unseen. With as many threads, on processors of
one make, features are the same bytes as on one machine, and so is what is learned; with another
number of threads they are equal up to float16's last bit. A worker has one thread by default.
"""

from adte.cluster.connect import ClusterOptions, connected

__all__ = ["ClusterOptions", "connected"]
