"""The processes of a cluster: a global store, gateways, storages, and the supervisor that starts them.

One folder a process; a process never imports another. What all share lies here: ``effect`` (what a pure core may ask
for), ``runtime`` (the only place that awaits, saves, then sends), ``process`` (the main of a service) and ``settings``.
"""

VERSION = "0.1.0"
