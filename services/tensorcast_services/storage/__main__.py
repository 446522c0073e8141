"""``python -m tensorcast_services.storage --node a``: started by the supervisor, or by hand with NATS_URL set."""

from __future__ import annotations

from tensorcast_services.process import run_service
from tensorcast_services.storage.build import build
from tensorcast_services.storage.settings import StorageSettings

if __name__ == "__main__":
    run_service("storage", StorageSettings, build)
