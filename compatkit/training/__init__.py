"""Tasks, models and the loop with a treatment's hooks; the modules load when a name of theirs is requested."""

from typing import TYPE_CHECKING

from ..support.lazy import names_of

if TYPE_CHECKING:
    from .loop import Treatment, encode, fine_tune, predict
    from .models import text_classifier
    from .tasks import load_task

__getattr__, __dir__, __all__ = names_of(
    __name__,
    {
        "loop": ("Treatment", "encode", "fine_tune", "predict"),
        "models": ("text_classifier",),
        "tasks": ("load_task",),
    },
)
