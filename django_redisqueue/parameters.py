"""Which arguments a task takes: a wrong call is told of where it is made, not by a worker later."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .exceptions import InvalidArguments

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the job's arguments fill. With ``least`` to ``most`` positional ones and no others a
    call is right, which costs nothing to see; the rest is for ``signature`` to say."""

    signature: inspect.Signature
    least: int
    most: float

    def check(
        self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any], before: int = 0
    ) -> None:
        """Raise InvalidArguments unless a call fits; ``before`` arguments come in front when the
        job runs. The message shows no values: they may be secret."""
        if not kwargs and self.least <= len(args) + before <= self.most:
            return
        try:
            self.signature.bind(*(None,) * before, *args, **kwargs)
        except TypeError as error:
            result = " (the first is its parent's result)" if before else ""
            raise InvalidArguments(
                f"{task} cannot be called like this: {error}; it takes {self.signature}{result}"
            ) from None


#: Those of a function that takes whatever it is given.
ANYTHING = Parameters(inspect.signature(lambda *args, **kwargs: None), 0, float("inf"))


def parameters_of(func: Callable[..., Any], skip: int = 0) -> Parameters:
    """The Parameters of a function; its first ``skip`` are not arguments of the job. A decorator's
    own are meant, not those of the function that it wraps: it may add some."""
    signature = inspect.signature(func, follow_wrapped=False)
    own = list(signature.parameters.values())
    some = own[skip:] if all(one.kind in _POSITIONAL for one in own[:skip]) else own
    needed = [one for one in some if one.default is one.empty]
    least = sum(one.kind in _POSITIONAL for one in needed)
    has_more = any(one.kind is one.VAR_POSITIONAL for one in some)
    needs_names = any(one.kind is one.KEYWORD_ONLY for one in needed)
    most = float("inf") if has_more else sum(one.kind in _POSITIONAL for one in some)
    shown = [one.replace(annotation=one.empty) for one in some]
    return Parameters(
        signature.replace(parameters=shown, return_annotation=signature.empty),
        least,
        -1 if needs_names else most,
    )
