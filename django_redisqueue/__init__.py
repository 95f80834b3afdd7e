"""Background jobs on Redis for Django: none lost, none silently run twice."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .core.text import install_log_filter

install_log_filter()

if TYPE_CHECKING:
    from .client.public import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """Import the public names when the first is used: the probe of a container, which starts
        every few seconds, uses none."""
        public = import_module(f"{__name__}.client.public")
        if name == "__all__" or name in public.__all__:
            return getattr(public, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return [*globals(), *import_module(f"{__name__}.client.public").__all__]
