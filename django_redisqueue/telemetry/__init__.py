"""What leaves a process about its jobs: request ids in logs, OpenTelemetry, Sentry.

Only ``correlation`` is imported here; the other modules need their libraries.
"""

from .correlation import CorrelationFilter, CorrelationMiddleware, correlate, correlation_id

__all__ = ["CorrelationFilter", "CorrelationMiddleware", "correlate", "correlation_id"]
