"""Speed on this machine: images a second from JPEG to label (`adte bench rate`).

timing   times by turns, and the conditions they hold under
rate     the usual way, our way, the tower alone and the limit; the photographs and classes for them

Other benchmarks are scripts in benchmarks/, made of the same parts.
"""
