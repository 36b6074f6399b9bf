"""The layers together."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from hloserve import config
from hloserve.core.errors import ConfigProblem


def _file(directory: Path, text: str) -> Path:
    file = directory / "node.yaml"
    file.write_text(text)
    return file


def _problems(caught: pytest.ExceptionInfo[ConfigProblem]) -> list[str]:
    return str(caught.value).splitlines()


def test_defaults_alone_are_a_configuration() -> None:
    """Nothing needs to be set: every setting has a default, and the source says so."""
    loaded = config.load()

    assert {"default"} == set(loaded.sources.values())
    assert config.WorkerConfig() == loaded.config
    assert (8000, 8001, 8002) == (
        loaded.config.endpoints.http_port,
        loaded.config.endpoints.grpc_port,
        loaded.config.endpoints.admin_port,
    )
    assert "127.0.0.1" == loaded.config.endpoints.host
    assert (512 * 2**20, 512 * 2**20) == (
        loaded.config.grpc.max_recv_msg_bytes,
        loaded.config.grpc.max_send_msg_bytes,
    )


def test_flags_win_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    """Each layer overrides the one before, value by value, and each value knows its layer."""
    file = _file(
        tmp_path, "scheduler: {max_queue_depth: 1}\nendpoints: {http_port: 1, grpc_port: 2}\n"
    )
    environ = {"HLOSERVE_ENDPOINTS_HTTP_PORT": "3", "HLOSERVE_ENDPOINTS_GRPC_PORT": "4"}

    loaded = config.load(file, environ, {"endpoints.grpc_port": 5, "endpoints.host": None})

    assert (1, 3, 5, 8002) == (
        loaded.config.scheduler.max_queue_depth,
        loaded.config.endpoints.http_port,
        loaded.config.endpoints.grpc_port,
        loaded.config.endpoints.admin_port,
    )
    sources = loaded.sources
    assert f"file {file}" == sources["scheduler.max_queue_depth"]
    assert "HLOSERVE_ENDPOINTS_HTTP_PORT" == sources["endpoints.http_port"]
    assert "flag --grpc-port" == sources["endpoints.grpc_port"]
    assert "default" == sources["endpoints.admin_port"] == sources["endpoints.host"]


def test_every_setting_is_shown_once() -> None:
    """The list of settings holds each of them, with value and source."""
    shown = list(config.load(None, {"HLOSERVE_LOGGING_LEVEL": "debug"}).items())

    assert len(shown) == len({s.path for s in shown})
    assert ("debug", "HLOSERVE_LOGGING_LEVEL") in [(s.value, s.source) for s in shown]


def test_model_settings_come_from_file_and_environment(tmp_path: Path) -> None:
    """Settings of single models merge model by model; a name may hold dots."""
    file = _file(
        tmp_path,
        "scheduler: {models: {bert.base: {max_batch_size: 8}, resnet: {max_batch_size: 2}}}",
    )
    environ = {"HLOSERVE_SCHEDULER_MODELS": '{"resnet": {"max_batch_size": 4}, "other": {}}'}

    loaded = config.load(file, environ)

    models = loaded.config.scheduler.models
    assert {"bert.base": 8, "resnet": 4} == {n: m.max_batch_size for n, m in models.items()}
    assert "HLOSERVE_SCHEDULER_MODELS" == loaded.sources["scheduler.models.resnet.max_batch_size"]


def test_batch_sizes_of_a_model_are_a_list_of_numbers(tmp_path: Path) -> None:
    """In a file and, as JSON, in the environment; unset leaves them to the bundle."""
    file = _file(tmp_path, "scheduler: {models: {bert: {batch_sizes: [1, 16]}, resnet: {}}}")
    environ = {"HLOSERVE_SCHEDULER_MODELS": '{"vit": {"batch_sizes": [64]}}'}

    models = config.load(file, environ).config.scheduler.models

    assert {"bert": (1, 16), "vit": (64,)} == {n: m.batch_sizes for n, m in models.items()}
    assert config.load(file).config.scheduler.models["bert"].max_batch_size is None


def test_relative_path_in_a_file_is_relative_to_the_file(tmp_path: Path) -> None:
    """A repository beside the node file is found from every working directory."""
    (tmp_path / "models").mkdir()
    file = _file(tmp_path, "model_dirs: [models]\n")

    assert (str(tmp_path / "models"),) == config.load(file).config.model_dirs


def test_list_in_the_environment_is_separated_by_colons(tmp_path: Path) -> None:
    """HLOSERVE_MODEL_DIRS is a list like PATH."""
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()

    loaded = config.load(None, {"HLOSERVE_MODEL_DIRS": f"{first}:{second}"})

    assert (str(first), str(second)) == loaded.config.model_dirs


@pytest.mark.parametrize(
    ("text", "at", "reason"),
    [
        ("scheduler: {disciplin: fifo}", "$.scheduler", "did you mean `discipline`?"),
        ("schedular: {}", "$", "did you mean `scheduler`?"),
        ("xyz: 1", "$", "known are model_dirs"),
        ("scheduler: {models: {r: {max_batch: 1}}}", "$.scheduler.models.r", "`max_batch_size`?"),
        ("scheduler: {models: {'a b': {max_batch_size: 0}}}", "['a b'].max_batch_size", "from 1"),
        (
            "scheduler: {models: {r: {batch_sizes: [1, 0]}}}",
            "$.scheduler.models.r.batch_sizes",
            "must be a list of whole numbers from 1 and up to 2147483647, got [1, 0]",
        ),
        ("scheduler: {models: {r: {batch_sizes: []}}}", "$.scheduler.models.r", "got []"),
        ("scheduler: {models: {r: {batch_sizes: 8}}}", "$.scheduler.models.r", "got 8"),
        ("scheduler: {models: {r: {batch_sizes: [1.5]}}}", "$.scheduler.models.r", "a list of"),
        ("scheduler: {models: {r: 8}}", "$.scheduler.models.r", "must be a mapping, got 8"),
        ("scheduler: {models: {7: {}}}", "$.scheduler.models", "key 7 must be a text; quote it"),
        ("scheduler: [1]", "$.scheduler", "must be a mapping, got [1]"),
        ("[1]", "$", "must be a mapping"),
        ("true: 1", "$", "key True must be a text"),
        ("endpoints: {http_port: 70000}", "$.endpoints.http_port", "65535, got 70000"),
        ("batch_policy: {}", "$", "use scheduler.models.<name>.max_batch_size"),
        ("runtime: {residency_mode: x}", "$.runtime.residency_mode", "self_managed"),
        ("runtime: {weight_cache_fraction: 2}", "$.runtime.weight_cache_fraction", "2"),
        ("runtime: {shared_host_weights_mode: '999'}", "$.runtime.shared_host_weights_mode", "999"),
        (
            "scheduler: {models: {r: {pin_to_gpu: true}}}",
            "$.scheduler.models.r",
            "residency: device",
        ),
        ("cache_dir: x", "$", "runtime.executable_cache_dir"),
        ("scheduler: {models: {r: {weight: 0}}}", "$.scheduler.models.r.weight", "0"),
        ("scheduler: {cost_ema_alpha: 0.2}", "$.scheduler", "is not a setting"),
        ("scheduler: {dispatch_timeout_seconds: 3}", "$.scheduler", "never enforced"),
        ("endpoints: {port: 8080}", "$.endpoints", "is called endpoints.grpc_port here"),
        ("workers: []", "$", "a file describes one worker"),
        ("'\\x1b[2J': 1", "$", "\\x1b[2J"),
        (
            "runtime: {compile_options: {xla_cpu_a: 1, foo: 1}}",
            "$.runtime.compile_options",
            "'foo' is not a name of an option of XLA, in full and in lower case, as in"
            " `xla_cpu_prefer_vector_width: 512`; correct it, or remove it",
        ),
        ("runtime: {compile_options: {7: 1}}", "$.runtime.compile_options", "7 is not a name"),
        (
            "runtime: {compile_options: {xla_cpu_a: [1]}}",
            "$.runtime.compile_options",
            "'xla_cpu_a' must be true, false, a number or a text, got [1]",
        ),
        ("runtime: {compile_options: [1]}", "$.runtime.compile_options", "a mapping from names"),
    ],
)
def test_mistake_in_a_file_is_told_with_its_path(
    tmp_path: Path, text: str, at: str, reason: str
) -> None:
    """A key or value that cannot be used names its file, its path and what to write instead."""
    file = _file(tmp_path, text)

    with pytest.raises(ConfigProblem) as caught:
        config.load(file)

    assert str(file) == caught.value.source
    assert at in caught.value.at
    assert reason in caught.value.reason
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("mode", ["000", "060", "400", "0200", "566"])
def test_mode_with_which_the_owner_could_not_share_weights_is_refused(mode: str) -> None:
    """A second worker of the same user could not open what the first one made."""
    with pytest.raises(ConfigProblem, match="the first 6 or 7"):
        config.load(None, {"HLOSERVE_RUNTIME_SHARED_HOST_WEIGHTS_MODE": mode})


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"HLOSERVE_SCHEDULER_MAX_QUEU_DEPTH": "1"}, "did you mean HLOSERVE_SCHEDULER_MAX_QUEUE"),
        ({"HLOSERVE_": "1"}, "HLOSERVE_ is not a setting"),
        ({"HLOSERVE_ENDPOINTS_PORT": "8080"}, "is called endpoints.grpc_port here"),
        (
            {"HLOSERVE_SCHEDULER_MAX_QUEUE_DEPTH": "many"},
            "HLOSERVE_SCHEDULER_MAX_QUEUE_DEPTH: must",
        ),
        ({"HLOSERVE_RUNTIME_PREALLOCATE": "ture"}, "must be true or false, got 'ture'"),
        ({"HLOSERVE_SCHEDULER_MODELS": "{"}, "as JSON"),
        ({"HLOSERVE_SCHEDULER_MODELS": "[" * 10**6}, "as JSON"),
        ({"HLOSERVE_SCHEDULER_MODELS": '{"r": {"weight": 0}}'}, "$.scheduler.models.r"),
        ({"HLOSERVE_RUNTIME_NUMERICS": "tf32"}, "only NVIDIA GPUs have"),
        ({"HLOSERVE_RUNTIME_COMPILE_OPTIONS": "xla_a"}, "names of options of XLA (xla_...)"),
        ({"HLOSERVE_RUNTIME_COMPILE_OPTIONS": '{"cpu": 1}'}, "is not a name of an option of XLA"),
    ],
)
def test_mistake_in_the_environment_names_its_variable(
    environ: Mapping[str, str], reason: str
) -> None:
    """A variable that is unknown or holds a bad value is an error, never ignored."""
    with pytest.raises(ConfigProblem) as caught:
        config.load(None, environ)

    assert reason in str(caught.value)


def test_variables_of_others_are_not_looked_at() -> None:
    """Only variables of our prefix are settings, and those of a Kubernetes Service are not ours."""
    environ = {
        "PATH": "/bin",
        "HLOSERVER_X": "1",
        "HLOSERVE_SERVICE_HOST": "10.0.0.1",
        "HLOSERVE_SERVICE_PORT": "8000",
        "HLOSERVE_SERVICE_PORT_HTTP": "8000",
        "HLOSERVE_PORT": "tcp://10.0.0.1:8000",
        "HLOSERVE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "HLOSERVE_PORT_8000_TCP_ADDR": "10.0.0.1",
        "HLOSERVE_CANARY_PORT_8000_TCP_PROTO": "tcp",
    }

    assert {"default"} == set(config.load(None, environ).sources.values())


def test_flag_out_of_range_names_the_flag() -> None:
    """A bad value on the command line is told with the flag that was typed."""
    with pytest.raises(ConfigProblem, match=r"^--http-port: must be a whole number"):
        config.load(flags={"endpoints.http_port": 99999})


def test_all_mistakes_are_told_at_once(tmp_path: Path) -> None:
    """One run tells everything that is wrong, from all layers."""
    file = _file(tmp_path, "a: 1\nb: 2\nendpoints: {http_port: x}\n")

    with pytest.raises(ConfigProblem) as caught:
        config.load(file, {"HLOSERVE_C": "1"}, {"endpoints.grpc_port": -1})

    assert 5 == len(_problems(caught))
    assert 4 == len(caught.value.others)


@pytest.mark.parametrize("name", ["http_port", "grpc_port", "admin_port"])
def test_ports_must_differ(name: str) -> None:
    """Two listeners on one port are refused, naming both settings and who set them."""
    other = "endpoints.grpc_port" if name != "grpc_port" else "endpoints.http_port"

    with pytest.raises(ConfigProblem, match=r"takes too") as caught:
        config.load(None, {}, {f"endpoints.{name}": 5000, other: 5000})

    assert "flag --" in str(caught.value)


def test_port_zero_may_be_given_to_all() -> None:
    """Port 0 lets the system pick, so it never collides."""
    flags = {f"endpoints.{name}": 0 for name in ("http_port", "grpc_port", "admin_port")}

    assert 0 == config.load(None, {}, flags).config.endpoints.http_port


def test_model_directory_must_exist_once(tmp_path: Path) -> None:
    """A repository that does not exist, or is listed twice, is refused with its place."""
    file = tmp_path / "file"
    file.touch()
    directories = [str(tmp_path), str(tmp_path / "absent"), str(file), f"{tmp_path}/.", "a\0b"]

    with pytest.raises(ConfigProblem) as caught:
        config.load(flags={"model_dirs": directories})

    absent, plain, twice, nul = _problems(caught)
    assert "REPO: $.model_dirs[1]" in absent
    assert "is not an existing directory" in absent
    assert "is not an existing directory" in plain
    assert "is given twice" in twice
    assert r"'a\x00b' is not an existing directory" in nul


def test_serving_needs_a_repository(tmp_path: Path) -> None:
    """To serve, at least one model repository must be named, and the error says how."""
    config.require_model_dirs(config.load(flags={"model_dirs": [str(tmp_path)]}))

    with pytest.raises(ConfigProblem, match="HLOSERVE_MODEL_DIRS"):
        config.require_model_dirs(config.load())


def test_missing_file_is_a_problem(tmp_path: Path) -> None:
    """A node file that was asked for must exist."""
    with pytest.raises(ConfigProblem, match="No such file"):
        config.load(tmp_path / "absent.yaml")


def test_section_without_keys_is_no_mistake(tmp_path: Path) -> None:
    """A section whose keys are all commented out, and an empty file, give nothing."""
    assert config.load().config == config.load(_file(tmp_path, "scheduler:\n  # nothing\n")).config
    assert config.load().config == config.load(_file(tmp_path, "")).config
