"""A YAML list of models to export, as a checked value.

What lives here: the keys of the file and every rule that can be told without running anybody's
code. What does not: exporting (`hloserve.export.lists.run`). Reads the file and looks at
directories; one thread.

Rules.
1. Everything that is wrong is told at once, each with its path in the file: ``$.handlers[0].file``.
2. A relative path is relative to the file, also in options whose key ends in ``_dir`` or ``_path``.
3. One model has one origin. The same name in two source directories is refused.
"""

import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hloserve.bundle.layout import is_bundle_name
from hloserve.config.settings import show
from hloserve.config.yaml_file import read_yaml
from hloserve.core.errors import ConfigProblem
from hloserve.export.lists.plain_options import PLAIN_OPTIONS, OptionRefused, read_option
from hloserve.export.lists.target import Target, TargetFault, parse_target

__all__ = ["Exclusion", "ExportList", "ListedModel", "check_names", "load_export_list"]

_KEYS = ("source_dirs", "output_root", "report_path", "exclude", "handlers", "targets")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """A model that is not exported, and why."""

    reason: str
    remove_existing: bool = False


@dataclass(frozen=True, slots=True)
class ListedModel:
    """One model of the list.

    Attributes:
        name: of the model, and so of its bundle.
        source: its directory in one of the source directories, if it has one.
        handler: the file of its handler, if it has one.
        target: its Python target, if it has one. Without either it is a TorchScript model.
        options: of the handler or the target.
        exclusion: why it is not exported; None when it is.
    """

    name: str
    source: Path | None = None
    handler: Path | None = None
    target: Target | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    exclusion: Exclusion | None = None


@dataclass(frozen=True, slots=True)
class ExportList:
    """A checked list.

    Attributes:
        file: where it came from; relative targets start at its directory.
        output_root: the model repository to write into.
        report_path: where the report goes.
        models: in the order in which they are exported.
    """

    file: Path
    output_root: Path
    report_path: Path
    models: tuple[ListedModel, ...]

    @property
    def base(self) -> Path:
        """The directory that relative paths of the list are relative to."""
        return self.file.parent


def load_export_list(file: Path) -> ExportList:
    """Read a list and check it.

    Raises:
        ConfigProblem: something is wrong; it carries all that is.
    """
    file = Path(os.path.abspath(file))
    reader = _Reader(file)
    root = reader.mapping(read_yaml(file), "$", _KEYS)
    sources = _read_sources(reader, root)
    output_root = reader.path(root, "output_root")
    report_path = reader.path(root, "report_path")
    exclusions = _read_exclusions(reader, root)
    models = {
        **{name: ListedModel(name, source=path) for name, path in sources.items()},
        **_read_handlers(reader, root, sources),
    }
    for name, model in _read_targets(reader, root).items():
        if name in models:
            reader.refuse(f"$.targets.{name}", f"model {name!r} has another origin; keep one")
        models[name] = model
    if not any(root.get(key) for key in ("source_dirs", "handlers", "targets")):
        reader.refuse("$", "lists no models: give source_dirs, handlers or targets")
    for name, model in models.items():
        if name in exclusions and (model.handler or model.target):
            reader.refuse(f"$.exclude.{name}", f"model {name!r} is excluded and listed; keep one")
    reader.raise_problems()
    assert output_root is not None, "missing keys were refused"
    assert report_path is not None, "missing keys were refused"
    listed = (
        ListedModel(m.name, m.source, m.handler, m.target, m.options, exclusions.get(m.name))
        for m in models.values()
    )
    return ExportList(file, output_root, report_path, tuple(listed))


def check_names(listed: ExportList, names: Collection[str]) -> None:
    """Refuse names that are not in the list.

    Raises:
        ConfigProblem: with all of them.
    """
    known = [model.name for model in listed.models]
    problems = [
        ConfigProblem("--only", "", f"no model is called {show(name)}; {nearest(name, known)}")
        for name in names
        if name not in known
    ]
    if problems:
        first, *others = problems
        raise ConfigProblem(first.source, first.at, first.reason, others)


class _Reader:
    """Takes values out of the tree, and collects what is wrong with them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._problems: list[ConfigProblem] = []

    def refuse(self, at: str, reason: str) -> None:
        """Remember a finding."""
        self._problems.append(ConfigProblem(str(self._file), at, reason))

    def raise_problems(self) -> None:
        """Raise everything that was found; return when that is nothing."""
        if self._problems:
            first, *others = self._problems
            raise ConfigProblem(first.source, first.at, first.reason, others)

    def mapping(
        self, raw: object, at: str, known: Collection[str] | None = None
    ) -> Mapping[str, Any]:
        """A mapping with text keys, of which only the known ones stay."""
        if raw is None:
            return {}
        if not isinstance(raw, Mapping):
            self.refuse(at, f"must be a mapping, got {show(raw)}")
            return {}
        kept = {}
        for key, value in raw.items():
            if not isinstance(key, str):
                self.refuse(at, f"key {show(key)} must be a text; quote it")
            elif known is not None and key not in known:
                self.refuse(at, f"unknown key {show(key)}; {nearest(key, known)}")
            else:
                kept[key] = value
        return kept

    def sequence(self, raw: object, at: str) -> Sequence[Any]:
        """A list; empty when it is missing."""
        if raw is None:
            return ()
        if not isinstance(raw, list):
            self.refuse(at, f"must be a list, got {show(raw)}")
            return ()
        return raw

    def text(self, raw: object, at: str) -> str | None:
        """A text that is not empty."""
        if isinstance(raw, str) and raw.strip():
            return raw
        self.refuse(at, f"must be a text that is not empty, got {show(raw)}")
        return None

    def name(self, raw: object, at: str) -> str | None:
        """The name of a model, which is also that of a directory."""
        name = self.text(raw, at)
        if name is not None and not (is_bundle_name(name) and "/" not in name and "\0" not in name):
            self.refuse(at, f"{show(name)} cannot be the name of a bundle's directory")
            return None
        return name

    def absolute(self, path: str) -> Path:
        """A path, relative to the file."""
        return Path(os.path.abspath(self._file.parent / path))

    def path(self, root: Mapping[str, Any], key: str) -> Path | None:
        """The path at a required key of the root."""
        if key not in root:
            self.refuse(f"$.{key}", "is missing")
            return None
        text = self.text(root[key], f"$.{key}")
        return None if text is None else self.absolute(text)

    def options(self, raw: object, at: str) -> dict[str, Any]:
        """Options of a handler, with absolute paths where the key says so."""
        options = dict(self.mapping(raw, at))
        for key, value in options.items():
            if key.endswith(("_dir", "_path")) and isinstance(value, str):
                options[key] = str(self.absolute(value))
        return options


def nearest(name: str, known: Collection[str]) -> str:
    """What a misspelt name may have been meant to be."""
    close = difflib.get_close_matches(name[:80], known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def _read_sources(reader: _Reader, root: Mapping[str, Any]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for index, raw in enumerate(reader.sequence(root.get("source_dirs"), "$.source_dirs")):
        at = f"$.source_dirs[{index}]"
        text = reader.text(raw, at)
        if text is None:
            continue
        directory = reader.absolute(text)
        try:
            names = sorted(os.listdir(directory))
        except OSError as error:
            reader.refuse(at, f"{str(directory)!r} cannot be read: {error.strerror}")
            continue
        for name in names:
            path = directory / name
            if not (is_bundle_name(name) and path.is_dir()):
                continue
            if name in found:
                other = str(found[name])
                reader.refuse(at, f"model {name!r} is in {other!r} too; rename one of them")
            found[name] = path
    return found


def _read_exclusions(reader: _Reader, root: Mapping[str, Any]) -> dict[str, Exclusion]:
    exclusions = {}
    for name, raw in reader.mapping(root.get("exclude"), "$.exclude").items():
        at = f"$.exclude.{name}"
        entry = reader.mapping(raw, at, ("reason", "remove_existing"))
        reason = reader.text(entry.get("reason"), f"{at}.reason")
        remove_existing = entry.get("remove_existing", False)
        if not isinstance(remove_existing, bool):
            reader.refuse(
                f"{at}.remove_existing", f"must be true or false, got {show(remove_existing)}"
            )
        exclusions[name] = Exclusion(reason or "", remove_existing is True)
    return exclusions


def _read_handlers(
    reader: _Reader, root: Mapping[str, Any], sources: Mapping[str, Path]
) -> dict[str, ListedModel]:
    models: dict[str, ListedModel] = {}
    for index, raw in enumerate(reader.sequence(root.get("handlers"), "$.handlers")):
        at = f"$.handlers[{index}]"
        entry = reader.mapping(raw, at, ("file", "models", "options"))
        text = reader.text(entry.get("file"), f"{at}.file")
        file = None if text is None else reader.absolute(text)
        if file is not None and not file.is_file():
            reader.refuse(f"{at}.file", f"there is no file {str(file)!r}")
        options = reader.options(entry.get("options"), f"{at}.options")
        names = reader.sequence(entry.get("models"), f"{at}.models")
        if not names:
            reader.refuse(f"{at}.models", "names no model")
        for position, raw_name in enumerate(names):
            here = f"{at}.models[{position}]"
            name = reader.name(raw_name, here)
            if name is None:
                continue
            if name in models:
                reader.refuse(here, f"model {name!r} has a handler already")
            models[name] = ListedModel(name, sources.get(name), handler=file, options=options)
    return models


def _read_targets(reader: _Reader, root: Mapping[str, Any]) -> dict[str, ListedModel]:
    models = {}
    for key, raw in reader.mapping(root.get("targets"), "$.targets").items():
        at = f"$.targets.{key}"
        name = reader.name(key, at)
        entry = reader.mapping(raw, at, ("target", "options"))
        text = reader.text(entry.get("target"), f"{at}.target")
        target = None
        try:
            target = None if text is None else parse_target(text)
        except TargetFault as fault:
            reader.refuse(f"{at}.target", f"{fault}, got {show(text)}")
        if target is not None and target.is_file:
            file = reader.absolute(target.module)
            if not file.is_file():
                reader.refuse(f"{at}.target", f"there is no file {str(file)!r}")
        options = _read_plain_options(reader, entry.get("options"), f"{at}.options")
        if name is not None:
            models[name] = ListedModel(name, target=target, options=options)
    return models


def _read_plain_options(reader: _Reader, raw: object, at: str) -> dict[str, Any]:
    options = {}
    for key, value in reader.mapping(raw, at, PLAIN_OPTIONS).items():
        try:
            options[key] = read_option(key, value)
        except OptionRefused as refusal:
            reader.refuse(f"{at}.{key}", str(refusal))
    if "hook_file" in options:
        options["hook_file"] = reader.absolute(options["hook_file"])
    if "assets" in options:
        options["assets"] = tuple(map(reader.absolute, options["assets"]))
    return options
