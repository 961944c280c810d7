"""A gateway in a process of its own, so that its CPU can be told from its readers': `python -m bench.serve URL ENDPOINT CACHE`."""

import asyncio
import logging
import sys
from pathlib import Path

import structlog

from headwater.gateway.config import GatewayConfig
from headwater.gateway.server import serve
from headwater_core.objectstore.store_url import open_store
from hydration.config import HydrationConfig
from hydration.logs import open_logs


def main() -> None:
    url, endpoint_url, cache = sys.argv[1:]
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    store = open_store(url, endpoint_url=endpoint_url, region="us-east-1")
    logs = open_logs(HydrationConfig(), store=store, cache_directory=Path(cache))
    asyncio.run(serve(logs, GatewayConfig(listen="127.0.0.1:0"), started=lambda address: print(address[1], flush=True)))


if __name__ == "__main__":
    main()
