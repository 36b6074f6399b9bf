"""Write the reference pages that follow from the code: `python tools/make_reference.py [--check]`.

`docs/configuration.md` comes from the settings' schema, `docs/commands.md` from the commands,
`docs/errors.md` from the error classes and the status table, `docs/openapi.json` from the server.
With ``--check`` nothing is written; the exit status is 1 when a page is not what it would be.
"""

import ast
import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import click

from hloserve.cli.main import cli
from hloserve.config import scheduling_schema, schema
from hloserve.config.settings import SETTINGS, Setting, environment_name
from hloserve.core import errors
from hloserve.core.units import format_bytes, format_duration
from hloserve.server.openapi import build_openapi
from hloserve.wire.status import grpc_code, http_status

DOCS = Path(__file__).resolve().parent.parent / "docs"
NOTE = "<!-- Made by tools/make_reference.py: edit what it reads, then run `make reference`. -->"

CONFIGURATION = """\
# Configuration

A worker reads its settings from four places; a later one wins:

1. the defaults below;
2. the node file, `hloserve serve --config node.yaml`;
3. the environment, `HLOSERVE_<SECTION>_<FIELD>`;
4. the flags of `hloserve serve`.

`hloserve config show` prints every setting, its value and where it came from; `hloserve config
check node.yaml` prints everything that is wrong. An unknown key or variable is an error, so a
misspelt one cannot be ignored in silence; so is a value that this version cannot honour.

```yaml
model_dirs: [models]
endpoints:
  host: 0.0.0.0
access:
  tokens_file: tokens
scheduler:
  max_queue_depth: 256
  models:
    resnet: {max_batch_size: 16}
drain_timeout_s: 30s
```

Sizes are bytes or text like `512MiB` and `2GB`, times are seconds or text like `250ms`, `30s` and
`5m`. In the environment a list is separated by colons, and `HLOSERVE_SCHEDULER_MODELS` is JSON.
A relative path is relative to the file that holds it, or to the working directory. A node file has
no YAML anchors, aliases or tags. Variables that Kubernetes sets for a Service whose name starts
with `hloserve` are ignored.
"""

COMMANDS = """\
# Commands

Every command ends with status 0 when it is done, 1 when it failed, 2 when its arguments or the
configuration are wrong. `--debug` shows the traceback of an error.
"""

ERRORS = """\
# Errors

Every error that a user can meet is one of these types, defined in `hloserve.core.errors`. Its type
decides its status; the message says what was expected, what came and what to do. A retryable error
may succeed when the same call is made again. The callers of a server never see the message of an
internal error, but a request id under which the log has it.
"""


def field_docs(*modules: ModuleType) -> Mapping[str, str]:
    """The sentence under each field of each class: ``Class.field`` to text."""
    docs = {}
    nodes = (node for module in modules for node in ast.parse(inspect.getsource(module)).body)
    for node in (node for node in nodes if isinstance(node, ast.ClassDef)):
        for field, text in itertools.pairwise(node.body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
            ):
                docs[f"{node.name}.{field.target.id}"] = " ".join(str(text.value.value).split())
    return docs


def section_class(path: tuple[str, ...]) -> type:
    """The struct of a section, by its path."""
    section: type = schema.WorkerConfig
    for part in path:
        if part == "<model>":
            section = scheduling_schema.ModelSchedulerConfig
        elif part != "models":
            section = section.__annotations__[part]
    return section


def configuration() -> Iterator[str]:
    """`docs/configuration.md`, line by line."""
    yield CONFIGURATION
    docs = field_docs(schema, scheduling_schema)
    heading: tuple[str, ...] | None = None
    for path, setting in SETTINGS.items():
        section = section_class(path[:-1])
        if path[:-1] != heading:
            heading = path[:-1]
            title = f"`{'.'.join(heading)}`" if heading else "Top level"
            yield f"## {title}\n\n{inspect.cleandoc(section.__doc__ or '')}\n"
        yield from setting_lines(setting, docs[f"{section.__name__}.{path[-1]}"])


def setting_lines(setting: Setting, doc: str) -> Iterator[str]:
    """One setting: its name, meaning, values, default and variable."""
    yield f"### `{'.'.join(setting.path)}`\n\n{doc}\n"
    yield f"- values: {setting.expected.replace(chr(39), '`')}"
    yield f"- default: {default_text(setting)}"
    if "<model>" not in setting.path:
        yield f"- environment: `{environment_name(setting.path)}`"
    yield ""


def default_text(setting: Setting) -> str:
    """The default as a node file writes it."""
    value = setting.default
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if setting.reading.unit == "bytes" and isinstance(value, int):
        return f"`{format_bytes(value).replace(' ', '')}`"
    if setting.reading.unit == "seconds" and isinstance(value, float):
        return f"`{format_duration(value)}`"
    return f"`{list(value) if isinstance(value, tuple) else value}`"


def commands() -> Iterator[str]:
    """`docs/commands.md`, line by line."""
    yield COMMANDS
    for name, command in sorted(cli.commands.items()):
        yield from command_lines(f"hloserve {name}", command)


def command_lines(name: str, command: click.Command) -> Iterator[str]:
    """One command, and the commands below it."""
    if isinstance(command, click.Group):
        for below, subcommand in sorted(command.commands.items()):
            yield from command_lines(f"{name} {below}", subcommand)
        return
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    usage = " ".join([name, "[OPTIONS]", *(argument_text(a) for a in arguments)])
    yield f"## `{name}`\n\n```text\n{usage}\n```\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            title, *lines = paragraph.splitlines()[1:]
            code = inspect.cleandoc("\n".join(["", *lines]))
            yield f"{title}\n\n```sh\n{code}\n```\n"
        else:
            yield f"{paragraph}\n"
    yield "| option | meaning |\n|---|---|"
    for option in command.params:
        if isinstance(option, click.Option):
            yield option_row(option)
    yield ""


def argument_text(argument: click.Argument) -> str:
    """An argument as the usage line shows it."""
    if argument.metavar:
        return argument.metavar
    name = (argument.name or "").upper()
    return name if argument.required else f"[{name}]"


def option_row(option: click.Option) -> str:
    """One option as a row of the table."""
    value = "" if option.is_flag else f" {option.metavar or 'TEXT'}"
    shown = f" Default: `{option.default}`." if option.show_default else ""
    text = (option.help or "").replace("[default: ", "Default: `").replace("]", "`.")
    return f"| `{', '.join(option.opts)}{value}` | {text}{shown} |"


def error_page() -> Iterator[str]:
    """`docs/errors.md`, line by line."""
    yield ERRORS
    yield "| error | gRPC | HTTP | retryable | meaning |\n|---|---|---|---|---|"
    yield from error_rows(errors.HloserveError, 0)
    yield ""


def error_rows(error: type[errors.HloserveError], depth: int) -> Iterator[str]:
    """An error and those below it."""
    code = f"{error.code.value} ({grpc_code(error.code)})"
    status = http_status(error.__new__(error))
    meaning = " ".join(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0].split())
    retry = "yes" if error.retryable else ""
    indent = "&emsp;" * depth
    yield f"| {indent}`{error.__name__}` | {code} | {status} | {retry} | {meaning} |"
    ours = [e for e in error.__subclasses__() if e.__name__ in errors.__all__]
    drawn = re.findall(r"─ (\w+)", errors.__doc__ or "")
    for below in sorted(ours, key=lambda e: drawn.index(e.__name__)):
        yield from error_rows(below, depth + 1)


PAGES = {"configuration.md": configuration, "commands.md": commands, "errors.md": error_page}


def texts() -> Iterator[tuple[str, str]]:
    """Every generated file of `docs/` with its text."""
    for name, make in PAGES.items():
        title, *rest = "\n".join(make()).rstrip("\n").split("\n", 1)
        yield name, "\n".join([title, "", NOTE, *rest]) + "\n"
    yield "openapi.json", json.dumps(build_openapi(), indent=1) + "\n"


def main(arguments: list[str]) -> int:
    """Write or check the pages; the exit status."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    stale = []
    for name, text in texts():
        file = DOCS / name
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(f"docs/{name}")
        if not arguments:
            file.write_text(text, encoding="utf-8")
    if arguments and stale:
        print(f"not current: {', '.join(stale)}; run `make reference`")
        return 1
    print(f"wrote {', '.join(stale)}" if stale else "reference pages are current")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
