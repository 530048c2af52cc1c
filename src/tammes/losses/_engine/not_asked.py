"""A placeholder for statistics that a term did not ask for."""

from typing import Any, NoReturn


class NotAsked:
    """Placeholder in `Scores` for a field that the term did not request: any use raises an error."""

    def __init__(self, field: str, need: str) -> None:
        self._field, self._need = field, need

    def _refuse(self, *_: Any) -> NoReturn:
        raise ValueError(
            f"The term reads scores.{self._field} without requesting it. "
            f"Return Need({self._need}) from its `need`."
        )

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        flat = [part for item in args for part in (item if isinstance(item, list | tuple) else [item])]
        next(item for item in (*flat, *(kwargs or {}).values()) if isinstance(item, cls))._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # so that `hasattr` and `copy` work as usual
            raise AttributeError(name)
        self._refuse()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __pow__ = __rpow__ = __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = _refuse
    __matmul__ = __rmatmul__ = __iter__ = __bool__ = __float__ = _refuse
