"""Every method on Flower: the engine, and the two apps that a Flower project is made of."""

from typing import TYPE_CHECKING

from fedfuse.utils.lazy import lazy_names

if TYPE_CHECKING:
    from fedfuse.flower.client import client_app
    from fedfuse.flower.engine import FlowerEngine
    from fedfuse.flower.server import server_app

__all__ = ["FlowerEngine", "client_app", "server_app"]

# imported when first asked for: a device's process must not import the server, nor the server what devices need
__getattr__ = lazy_names(
    __name__,
    {
        "client": "client_app",
        "engine": "FlowerEngine",
        "server": "server_app",
    },
)
