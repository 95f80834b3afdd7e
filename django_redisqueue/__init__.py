"""Background jobs on Redis for Django: none lost, none silently run twice."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.text import install_log_filter

install_log_filter()

if TYPE_CHECKING:
    from .client.public import *  # noqa: F403
    from .worker.child.context import JobContext as JobContext
    from .worker.current import current_context as current_context
else:
    # JobContext is not in __all__, because its module imports models.
    _OF_WORKER = {"JobContext": "worker.child.context", "current_context": "worker.current"}

    def __getattr__(name: str) -> Any:
        """Import the public names when the first is used: the probe of a container, which starts
        every few seconds, uses none."""
        if name in _OF_WORKER:
            return getattr(import_module(f"{__name__}.{_OF_WORKER[name]}"), name)
        public = import_module(f"{__name__}.client.public")
        if name == "__all__":
            return [*public.__all__, "current_context"]
        if name in public.__all__:
            return getattr(public, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *_OF_WORKER, *import_module(f"{__name__}.client.public").__all__]
