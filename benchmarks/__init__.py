"""Side by side with what a user could pick instead: same payload, same machine, same hour.

`python -m benchmarks.append` and `python -m benchmarks.read` start every installed system on its own scratch folder
and loopback port, measure the same workloads on all of them in turns, and write a table and a JSON
document. Only ratios travel from one machine to another; absolute figures say as much about the disk as about the
software.
"""
