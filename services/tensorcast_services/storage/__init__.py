"""The storage of one node: it owns the pool's bytes and answers the node's local clients.

`core/` holds the rules; `service.py` connects them to the native floor (local.py), the file system (sources.py,
sidecars.py) and the global store (link.py, reports.py).
"""
