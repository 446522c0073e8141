"""The supervisor: starts the processes of one host's cluster, keeps them running, and ends them in order.

``python -m tensorcast_services.supervisor --folder DIR --name NAME --node a``. Its children hang on lifeline pipes, so
none outlives it; it holds a lock, so a folder has one cluster; the cluster file tells callers where everything is.
"""
