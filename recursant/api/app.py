"""The control API as an ASGI application."""

from fastapi import FastAPI

from recursant import __version__
from recursant.api import decisions, drain, errors, fleet, health, isolation, metrics, reports
from recursant.api.dependencies import Dependencies


def create_app(dependencies: Dependencies) -> FastAPI:
    """The application; it holds no state of its own. Its description is at /openapi.json."""
    app = FastAPI(
        title="Recursant control API",
        version=__version__,
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    errors.install(app)
    app.include_router(reports.router(dependencies.reports))
    app.include_router(health.router(dependencies.fleet, dependencies.clock))
    app.include_router(decisions.router(dependencies.inspect))
    # Before the fleet's, whose ids may hold a slash.
    app.include_router(isolation.router(dependencies.fleet, dependencies.isolation, dependencies.clock))
    app.include_router(drain.router(dependencies.fleet, dependencies.isolation, dependencies.read_peers))
    app.include_router(fleet.router(dependencies.fleet, dependencies.clock))
    app.include_router(metrics.router(dependencies.registry, dependencies.read_peers))
    return app
