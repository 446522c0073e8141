"""``python -m tensorcast_services.global_store``: started by the supervisor, or by hand with NATS_URL set."""

from tensorcast_services.global_store.service import build
from tensorcast_services.global_store.settings import GlobalStoreSettings
from tensorcast_services.process import run_service

if __name__ == "__main__":
    run_service("global_store", GlobalStoreSettings, build)
