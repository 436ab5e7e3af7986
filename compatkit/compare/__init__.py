"""Two or many versions of anything, by `compare(old, new)`: readers of each format, joins, slices, verdicts, policies, pages."""

from typing import TYPE_CHECKING

from ..support.lazy import names_of

if TYPE_CHECKING:
    from .pull_requests import gate
    from .report import compare

__getattr__, __dir__, __all__ = names_of(
    __name__, {"report": ("compare",), "pull_requests": ("gate",)}
)
