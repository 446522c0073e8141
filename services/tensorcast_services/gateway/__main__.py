"""``python -m tensorcast_services.gateway --node 0``: started by the supervisor, or by hand with NATS_URL set."""

from tensorcast_services.gateway.service import build
from tensorcast_services.gateway.settings import GatewaySettings
from tensorcast_services.process import run_service

if __name__ == "__main__":
    run_service("gateway", GatewaySettings, build)
