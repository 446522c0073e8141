"""Checkpoints on disk: what a file is, whether it is whole and true, and which files make one checkpoint.

Every way into TensorCast that takes a path goes through this room, so that every way has the same verdict.
"""
