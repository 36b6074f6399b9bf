"""Configuration under all inputs."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hloserve import config
from hloserve.config.schema import WorkerConfig
from hloserve.config.settings import SETTINGS, environment_name
from hloserve.config.yaml_file import parse_yaml
from hloserve.core.errors import ConfigProblem

NAMES = st.text("abcXYZ09._- é'\"", min_size=1, max_size=8)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "models_include": st.lists(NAMES, max_size=3),
    "model_control_mode": st.sampled_from(["dynamic", "static", "explicit"]),
    "startup_models": st.lists(NAMES, max_size=3),
    "model_poll_seconds": st.floats(0.001, 86400),
    "model_removal_seconds": st.floats(0, 86400),
    "hooks.load_timeout_seconds": st.floats(0.001, 86400),
    "model_settle_seconds": st.floats(0, 86400),
    "strict_startup": st.booleans(),
    "drain_timeout_s": st.floats(0, 86400),
    "runtime.backend": st.sampled_from(["cpu", "cuda"]),
    "runtime.device_ordinal": st.integers(0, 1023),
    "runtime.mem_fraction": st.floats(0, 1, exclude_min=True),
    "runtime.preallocate": st.booleans(),
    "runtime.allow_cpu_fallback": st.booleans(),
    "runtime.batch_sizes": st.sampled_from(["all", "largest"]),
    "runtime.executable_cache": st.booleans(),
    "runtime.executable_cache_dir": st.just("") | NAMES.map(lambda name: f"/d{name}"),
    "runtime.executable_cache_bytes": st.integers(1, 2**40),
    "runtime.weights_migration": st.sampled_from(["off", "copy", "replace"]),
    "runtime.load_threads": st.integers(1, 256) | st.just("auto"),
    "runtime.dispatches_in_flight": st.integers(1, 8) | st.just("auto"),
    "runtime.execution_timeout_seconds": st.floats(0, 86400),
    "runtime.cpu_threads": st.integers(1, 1024) | st.just("auto"),
    "runtime.reload_without_room": st.sampled_from(["keep_old", "unload_first"]),
    "runtime.weight_cache_bytes": st.integers(1, 2**40),
    "runtime.weight_cache_fraction": st.floats(0, 1),
    "runtime.weight_cache_wiggle_fraction": st.floats(0, 1, exclude_max=True),
    "runtime.residency_mode": st.sampled_from(["self_managed", "external"]),
    "runtime.shared_host_weights": st.booleans(),
    "runtime.shared_host_weights_mode": st.sampled_from(["600", "660", "0666"]),
    "runtime.numerics": st.sampled_from(["auto", "f32"]),
    "runtime.program_rewrites": st.booleans(),
    "runtime.compile_options": st.dictionaries(
        st.from_regex(r"xla_[a-z0-9_]{1,20}", fullmatch=True),
        st.booleans() | st.integers(-9, 512) | st.sampled_from(["", "A", "true"]),
        max_size=2,
    ),
    "runtime.autotune": st.booleans(),
    "runtime.autotune_cache": st.booleans(),
    "runtime.autotune_cache_dir": st.just("") | NAMES.map(lambda name: f"/a{name}"),
    "scheduler.discipline": st.sampled_from(["fair", "fifo", "edf"]),
    "scheduler.fair_formula": st.sampled_from(["corrected", "original"]),
    "scheduler.ema_halflife_seconds": st.floats(0.001, 86400),
    "scheduler.recency_penalty_cap": st.floats(0, 1, exclude_min=True),
    "scheduler.coalescing_discount": st.floats(0, 1, exclude_max=True),
    "scheduler.batch_planning": st.sampled_from(["min_cost", "full"]),
    "scheduler.max_queue_depth": st.integers(1, 2**31 - 1),
    "scheduler.compaction_interval": st.integers(0, 2**31 - 1),
    "scheduler.models": st.dictionaries(
        NAMES,
        st.fixed_dictionaries(
            {"max_batch_size": st.integers(1, 2**31 - 1)},
            optional={
                "batch_sizes": st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=3),
                "residency": st.sampled_from(["unpinned", "system", "device"]),
                "weight": st.floats(0, 1e6, exclude_min=True),
                "max_queue_delay_seconds": st.floats(0, 86400),
            },
        ),
        max_size=3,
    ),
    "endpoints.host": NAMES,
    "endpoints.http_port": st.integers(0, 20000),
    "endpoints.grpc_port": st.integers(20001, 40000),
    "endpoints.admin_port": st.integers(40001, 65535),
    "endpoints.insecure": st.booleans(),
    "endpoints.max_concurrent_requests": st.integers(0, 2**31 - 1),
    "endpoints.max_request_bytes_in_hand": st.integers(1, 2**40),
    "tls.certificate": st.sampled_from(["", "/dev/null"]),
    "tls.key": st.just(""),
    "tls.client_ca": st.just(""),
    "tls.client_ca_on_admin_port": st.booleans(),
    "tls.minimum_version": st.sampled_from(["1.2", "1.3"]),
    "access.tokens_file": st.sampled_from(["", "/dev/null"]),
    "grpc.max_recv_msg_bytes": st.integers(1, 2**31 - 1),
    "grpc.max_send_msg_bytes": st.integers(1, 2**31 - 1),
    "http.max_body_bytes": st.integers(1, 2**31 - 1),
    "http.header_timeout_s": st.floats(0.001, 86400),
    "http.body_timeout_s": st.floats(0.001, 86400),
    "http.idle_timeout_s": st.floats(0.001, 86400),
    "shared_memory.enabled": st.booleans(),
    "shared_memory.max_copied_bytes": st.integers(1, 2**40),
    "hooks.threads": st.integers(1, 256) | st.just("auto"),
    "hooks.max_processes": st.integers(0, 64),
    "metas.concurrency": st.integers(1, 256),
    "metas.scratch_bytes": st.integers(0, 2**40),
    "metas.scratch_slots": st.integers(1, 65536),
    "metas.exposed_models": st.lists(NAMES, max_size=3),
    "logging.level": st.sampled_from(["debug", "info", "warning", "error"]),
    "logging.format": st.sampled_from(["auto", "text", "json"]),
}
"""Good values by path; `model_dirs`, which the disk must hold, is left out."""

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=10,
)
"""Whatever JSON can hold."""

some_values = st.fixed_dictionaries({}, optional=VALUES)


def _as_tree(values: dict[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *sections, field = path.split(".")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[field] = value
    return tree


def _outcome(**layers: Any) -> str:
    """What the loader says is wrong; empty when nothing is."""
    try:
        config.load(**layers)
    except ConfigProblem as problem:
        return str(problem)
    return ""


def test_strategies_know_every_setting() -> None:
    """A new setting is part of the properties below."""
    paths = {".".join(path) for path in SETTINGS if "<model>" not in path}

    assert paths == {*VALUES, "model_dirs"}


@given(some_values)
def test_configuration_survives_its_own_file(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    """What is written to a node file is what is read from it, as often as one likes."""
    file = tmp_path_factory.mktemp("node") / "node.yaml"
    file.write_text(yaml.safe_dump(_as_tree(values), allow_unicode=True), encoding="utf-8")

    first = config.load(file).config
    file.write_text(yaml.safe_dump(msgspec.to_builtins(first)), encoding="utf-8")

    assert first == config.load(file).config
    assert first == msgspec.convert(_as_tree(values), WorkerConfig)


@given(some_values)
def test_environment_and_flags_say_what_a_file_says(values: dict[str, Any]) -> None:
    """A value is the same value whether it comes from a file, a variable or a flag."""
    text = {
        path: ":".join(value) if isinstance(value, list)
        else json.dumps(value) if isinstance(value, dict)
        else f"{value:.17g}" if isinstance(value, float)
        else str(value)
        for path, value in values.items()
    }  # fmt: skip
    variables = {environment_name(tuple(path.split("."))): t for path, t in text.items()}
    flags = {path: value for path, value in values.items() if path != "scheduler.models"}

    from_file = msgspec.convert(_as_tree(values), WorkerConfig)

    assert from_file == config.load(None, variables).config
    if "scheduler.models" not in values:
        assert from_file == config.load(None, {}, flags).config


@given(st.text(max_size=200) | st.builds(json.dumps, TREES))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Any text is YAML within bounds or one problem; nothing else is ever raised."""
    with contextlib.suppress(ConfigProblem):
        parse_yaml(text, "node.yaml")


@given(
    st.dictionaries(st.sampled_from(["scheduler", "endpoints", "runtime", "models_include"]), TREES)
)
def test_no_tree_breaks_the_loader(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[str, Any]
) -> None:
    """Whatever a node file holds, the outcome is a configuration or problems on printable lines."""
    file = tmp_path_factory.mktemp("node") / "node.yaml"
    file.write_text(json.dumps(tree), encoding="utf-8")

    told = _outcome(file=file)

    assert all(line.isprintable() for line in told.split("\n"))


@given(st.sampled_from(list(SETTINGS)), st.text(max_size=20))
def test_no_variable_breaks_the_loader(path: tuple[str, ...], text: str) -> None:
    """Whatever a variable holds, the outcome is a configuration or a problem that names it."""
    name = environment_name(path)

    told = _outcome(environ={name: text})

    assert told == "" or name in told
