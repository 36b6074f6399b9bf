"""What is wrong with files, settings and installations: the errors of those who run a server.

What lives here: the part of the tree of `hloserve.core.errors` that no caller of a server gets to
see. Everybody imports it from there.
"""

from collections.abc import Sequence

from hloserve.core.error_base import Code, HloserveError

__all__ = [
    "BundleProblem",
    "ConfigProblem",
    "ExportProblem",
    "HookProblem",
    "ManifestProblem",
    "MissingExtra",
    "ProgramProblem",
    "ProofFailed",
    "UntestedVersion",
    "WeightsProblem",
]


class BundleProblem(HloserveError):
    """A bundle that cannot be loaded, with everything that is wrong with it.

    Attributes:
        bundle: the bundle's directory or name.
        findings: one sentence each: the place, the rule, what was expected and what came.
    """

    def __init__(self, bundle: object, findings: Sequence[str] | str) -> None:
        self.bundle = str(bundle)
        self.findings = (findings,) if isinstance(findings, str) else tuple(findings)
        super().__init__(f"bundle {self.bundle}: " + "; ".join(self.findings))


class ManifestProblem(BundleProblem):
    """The content of `manifest.yaml`."""


class WeightsProblem(BundleProblem):
    """The weights file: header, offsets, metadata, missing tensors."""


class ProgramProblem(BundleProblem):
    """A program file: missing, unreadable, or at odds with manifest or weights."""


class HookProblem(BundleProblem):
    """`model.py`: it fails to run, or does not register what the bundle needs."""


class ExportProblem(HloserveError):
    """A model that cannot be exported, or must not be; nothing was written.

    Attributes:
        model: the name of the bundle that was asked for; empty when a model was only looked at, or
            has no name.
        findings: one sentence each: the layer, argument or option, what is wrong and what to do;
            each once.
    """

    def __init__(self, model: str, findings: Sequence[str] | str) -> None:
        self.model = model
        given = (findings,) if isinstance(findings, str) else findings
        self.findings = tuple(dict.fromkeys(given))
        prefix = f"export of {model!r}: " if model else ""
        super().__init__(prefix + "; ".join(self.findings))


class ProofFailed(ExportProblem):
    """The exported program does not compute what the source model does, or nothing proves it."""


class ConfigProblem(HloserveError):
    """A setting that cannot be used.

    Attributes:
        source: where it came from: a file, an environment variable, a flag.
        at: the path of the key, e.g. ``$.scheduler.discipline``.
        others: what else is wrong, so that one run tells everything.
    """

    def __init__(
        self, source: str, at: str, reason: str, others: Sequence["ConfigProblem"] = ()
    ) -> None:
        self.source, self.at, self.reason, self.others = source, at, reason, tuple(others)
        first = f"{source}: {at}: {reason}" if at else f"{source}: {reason}"
        super().__init__("\n".join([first, *map(str, others)]))


class MissingExtra(HloserveError):
    """A library of an optional extra is not installed; the text is the command that installs it."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, extra: str, purpose: str, missing: object) -> None:
        self.extra, self.purpose = extra, purpose
        super().__init__(
            f"{purpose} needs more packages: pip install 'hloserve[{extra}]' ({missing})"
        )


class UntestedVersion(HloserveError):
    """A library whose internals we use is of a version in which they have moved."""

    code = Code.FAILED_PRECONDITION

    def __init__(self, library: str, found: str, tested: str) -> None:
        self.library, self.found, self.tested = library, found, tested
        super().__init__(
            f"{library} {found} does not work with this version of hloserve, tested with"
            f" {library} {tested}; install one of these"
        )
