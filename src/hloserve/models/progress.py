"""What loading tells while it goes on.

What lives here: the events. What does not: drawing or logging them (`hloserve.server`). The loader
calls from its own thread; the implementation hands over to whatever draws.
"""

from typing import Protocol

from typing_extensions import override

__all__ = ["NoProgress", "Progress"]


class Progress(Protocol):
    """Listens to loads. Several bundles may load at once, each on one thread."""

    def bundles_found(self, bundles: int) -> None:
        """This many bundles are to be loaded."""

    def bundle_started(self, name: str) -> None:
        """A bundle is being read."""

    def programs_found(self, name: str, programs: int) -> None:
        """The bundle is in order, and this many programs are to be compiled."""

    def program_compiled(
        self, name: str, program: str, seconds: float, *, is_restored: bool
    ) -> None:
        """One program is compiled, or restored from the cache: ``model.b8.mlir``."""

    def bundle_warning(self, name: str, warning: str) -> None:
        """Something was ignored, or does not look right; the load goes on."""

    def bundle_ready(self, name: str, seconds: float) -> None:
        """The model can serve."""

    def bundle_failed(self, name: str, reason: str) -> None:
        """The load failed; the reason holds all findings."""


class NoProgress(Progress):
    """Listens to nothing."""

    @override
    def bundles_found(self, bundles: int) -> None:
        pass

    @override
    def bundle_started(self, name: str) -> None:
        pass

    @override
    def programs_found(self, name: str, programs: int) -> None:
        pass

    @override
    def program_compiled(
        self, name: str, program: str, seconds: float, *, is_restored: bool
    ) -> None:
        pass

    @override
    def bundle_warning(self, name: str, warning: str) -> None:
        pass

    @override
    def bundle_ready(self, name: str, seconds: float) -> None:
        pass

    @override
    def bundle_failed(self, name: str, reason: str) -> None:
        pass
