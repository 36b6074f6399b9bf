"""From a node file, the environment and flags to one `WorkerConfig`, remembering who said what.

What lives here: which layer wins (defaults < node file < environment < flags) and the checks that
need more than one value or the disk. What does not: the layers (`hloserve.config.layers`) and the
settings (`hloserve.config.schema`). Called once per process, by the command line.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import msgspec

from hloserve.config.layers import Given, read_environment, read_file, read_flags
from hloserve.config.schema import WorkerConfig
from hloserve.config.security_checks import check_security_files
from hloserve.config.settings import SETTINGS, Path, environment_name, flag_name, show
from hloserve.core.errors import ConfigProblem

__all__ = ["LoadedConfig", "ShownSetting", "load", "require_model_dirs"]

DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One line of `hloserve config show`."""

    path: str
    value: object
    source: str


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The settings of this process, and where each came from.

    Attributes:
        config: the checked values.
        shown: every setting with its value and source, in the order of the schema.
    """

    config: WorkerConfig
    shown: tuple[ShownSetting, ...]

    @property
    def sources(self) -> Mapping[str, str]:
        """Who gave the value at a dotted path.

        ``default``, ``file node.yaml``, ``HLOSERVE_MODEL_DIRS`` or ``flag --http-port``.
        """
        return {setting.path: setting.source for setting in self.shown}

    def items(self) -> Iterator[ShownSetting]:
        """Every setting with its value and source, in the order of the schema."""
        return iter(self.shown)


def load(
    file: FilePath | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
) -> LoadedConfig:
    """Read the settings from all layers and check them.

    Args:
        file: the node file, if there is one.
        environ: environment variables; none when left out. The caller passes `os.environ`.
        flags: values by dotted path, e.g. ``{"endpoints.http_port": 0}``; None means not given.

    Raises:
        ConfigProblem: something is wrong; it carries all that is.
    """
    given: dict[Path, Given] = {}
    problems: list[ConfigProblem] = []
    layers = (
        read_file(file) if file is not None else (),
        read_environment(environ or {}),
        read_flags(flags or {}),
    )
    for layer in layers:
        for found in layer:
            if isinstance(found, Given):
                given[found.path] = found
            else:
                problems.append(found)
    if not problems:
        loaded = _assemble(given)
        problems = [
            *_check_ports(loaded),
            *_check_directories(loaded),
            *_check_numerics(loaded),
            *check_security_files(loaded.config, loaded.sources),
        ]
        if not problems:
            return loaded
    first, *others = problems
    raise ConfigProblem(first.source, first.at, first.reason, others)


def require_model_dirs(loaded: LoadedConfig) -> None:
    """Refuse a configuration that names no model repository.

    Raises:
        ConfigProblem: `model_dirs` is empty.
    """
    if not loaded.config.model_dirs:
        path = ("model_dirs",)
        raise ConfigProblem(
            "configuration",
            "$.model_dirs",
            f"no model repository: give {flag_name(path)} to `hloserve serve`, or set model_dirs"
            f" in the node file, or {environment_name(path)}",
        )


def _assemble(given: Mapping[Path, Given]) -> LoadedConfig:
    tree: dict[str, Any] = {}
    for path, value in given.items():
        section = tree
        for part in path[:-1]:
            section = section.setdefault(part, {})
        section[path[-1]] = value.value
    return LoadedConfig(msgspec.convert(tree, WorkerConfig), tuple(_show(given)))


def _show(given: Mapping[Path, Given]) -> Iterator[ShownSetting]:
    for path, setting in SETTINGS.items():
        models = [p for p in given if setting.kind == "models" and p[: len(path)] == path]
        for model_path in models:
            yield _shown(given[model_path])
        if path in given:
            yield _shown(given[path])
        elif "<model>" not in path and not models:
            yield ShownSetting(".".join(path), setting.default, DEFAULT)


def _shown(given: Given) -> ShownSetting:
    return ShownSetting(".".join(given.path), given.value, given.source)


def _check_ports(loaded: LoadedConfig) -> Iterator[ConfigProblem]:
    """Three listeners on one host need three ports, unless the system picks."""
    endpoints, sources = loaded.config.endpoints, loaded.sources
    taken: dict[int, str] = {}
    for name in ("http_port", "grpc_port", "admin_port"):
        port, path = getattr(endpoints, name), f"endpoints.{name}"
        if port in taken:
            other = taken[port]
            yield ConfigProblem(
                sources[path],
                f"$.{path}",
                f"is {port}, which {other} takes too ({sources[other]}); give each its own port,"
                " or 0 to let the system pick",
            )
        elif port != 0:
            taken[port] = path


def _check_numerics(loaded: LoadedConfig) -> Iterator[ConfigProblem]:
    runtime = loaded.config.runtime
    if runtime.numerics == "tf32" and runtime.backend == "cpu":
        name = "runtime.numerics"
        yield ConfigProblem(
            loaded.sources[name],
            f"$.{name}",
            "is tf32, which only NVIDIA GPUs have, but runtime.backend is cpu; set auto or f32",
        )


def _check_directories(loaded: LoadedConfig) -> Iterator[ConfigProblem]:
    source = loaded.sources["model_dirs"]
    seen: set[str] = set()
    for index, directory in enumerate(loaded.config.model_dirs):
        at = f"$.model_dirs[{index}]"
        problem = "" if os.path.isdir(directory) else "is not an existing directory"
        real = directory if problem else os.path.realpath(directory)
        if real in seen:
            problem = "is given twice"
        seen.add(real)
        if problem:
            yield ConfigProblem(source, at, f"{show(directory)} {problem}")
