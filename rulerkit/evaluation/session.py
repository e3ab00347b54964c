"""A session holds the model that is loaded, so that several calls of `evaluate` load it once."""

from types import TracebackType
from typing import Any, Self

from rulerkit.common.settings import JSON
from rulerkit.inference.model import Model, load_model


class Session:
    """The model that is loaded at the moment, if any.

    Loading a model can take minutes. `evaluate` closes the models that it loaded before it returns;
    with a session the last one stays, until another model is asked for or the session is closed.
    A model that you made yourself (`rk.load_model`) is yours to close::

        with rk.Session() as session:
            rk.evaluate(study, session=session)
            rk.evaluate(another_study, session=session)  # the same model is not loaded again
    """

    def __init__(self) -> None:
        self.model: Model | None = None
        """The model that was used last and still holds its memory, its GPU or its server."""
        self._described: JSON | Model | None = None

    def find(self, described: JSON | Model) -> Model:
        """The model of a mapping; the one that is loaded, where it is the same. Nothing is loaded
        here: a model reads its weights when it answers first."""
        if self.model is not None and described == self._described:
            return self.model
        return load_model(described)

    def use(self, described: JSON | Model, model: Model) -> None:
        """Close the model that was used before, whoever made it, as two may not fit on one GPU."""
        if model is not self.model:
            if self.model is not None:
                self.model.close()
            self.model, self._described = model, described

    def close(self) -> None:
        """Free the memory and the GPU, and end the server of the model that is loaded. A model that
        the caller made stays as it is: it may be asked again."""
        model, described = self.model, self._described
        self.model = self._described = None
        if model is not None and described is not model:
            model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        self.close()
