"""The table of settings."""

import msgspec
import pytest

from hloserve.config.schema import WorkerConfig
from hloserve.config.settings import (
    SETTINGS,
    ValueRefused,
    environment_name,
    flag_name,
    read_text,
    read_value,
)


def test_every_setting_has_its_own_variable() -> None:
    """No two settings share a name in the environment."""
    names = [environment_name(path) for path in SETTINGS]

    assert len(names) == len(set(names))
    assert "HLOSERVE_SCHEDULER_MAX_QUEUE_DEPTH" in names
    assert "HLOSERVE_MODEL_DIRS" in names


def test_every_default_is_a_value_of_its_setting() -> None:
    """A default passes the check that a given value must pass."""
    for setting in SETTINGS.values():
        if setting.default not in (None, {}):
            assert setting.default == read_value(setting, setting.default)


def test_settings_are_frozen() -> None:
    """Nothing can edit a setting after it is read."""
    config = WorkerConfig()

    with pytest.raises(AttributeError):
        config.endpoints.http_port = 1  # type: ignore[misc]  # what the test is about


def test_structs_refuse_unknown_fields_themselves() -> None:
    """The schema is strict by itself, also for those who convert to it directly."""
    with pytest.raises(msgspec.ValidationError, match=r"`disciplin` - at `\$\.scheduler`"):
        msgspec.convert({"scheduler": {"disciplin": "fifo"}}, WorkerConfig)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("runtime.preallocate", "1", True),
        ("runtime.preallocate", " TRUE ", True),
        ("runtime.preallocate", "yes", True),
        ("runtime.preallocate", "On", True),
        ("runtime.preallocate", "0", False),
        ("runtime.preallocate", "no", False),
        ("runtime.preallocate", "False", False),
        ("runtime.preallocate", "off", False),
        ("runtime.mem_fraction", "1", 1.0),
        ("runtime.mem_fraction", ".5", 0.5),
        ("runtime.mem_fraction", "5e-1", 0.5),
        ("runtime.backend", "gpu", "cuda"),
        ("endpoints.http_port", "0", 0),
        ("hooks.threads", "4", 4),
        ("hooks.threads", "auto", "auto"),
        ("grpc.max_recv_msg_bytes", "512MiB", 2**29),
        ("grpc.max_recv_msg_bytes", "1024", 1024),
        ("drain_timeout_s", "1m", 60.0),
        ("drain_timeout_s", "0", 0.0),
        ("models_include", "a:b", ("a", "b")),
        ("models_include", "", ()),
    ],
)
def test_text_is_read_as_its_setting_says(path: str, text: str, expected: object) -> None:
    """A variable's text becomes the setting's type: booleans in words, lists by colons, units."""
    setting = SETTINGS[tuple(path.split("."))]

    assert expected == read_value(setting, read_text(setting, text))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("runtime.preallocate", "ture"),
        ("runtime.preallocate", "2"),
        ("runtime.preallocate", ""),
        ("runtime.mem_fraction", "0"),
        ("runtime.mem_fraction", "1.01"),
        ("runtime.mem_fraction", "nan"),
        ("runtime.mem_fraction", "inf"),
        ("runtime.mem_fraction", "1_0"),
        ("runtime.device_ordinal", "-1"),
        ("runtime.device_ordinal", "1.0"),
        ("runtime.device_ordinal", "١"),  # noqa: RUF001  # a digit, but not one of ours
        ("runtime.backend", "tpu"),
        ("runtime.backend", "CPU"),
        ("scheduler.max_queue_depth", "0"),
        ("scheduler.max_queue_depth", "9" * 40),
        ("endpoints.http_port", "65536"),
        ("endpoints.http_port", "http"),
        ("endpoints.host", ""),
        ("hooks.threads", "0"),
        ("hooks.threads", "many"),
        ("grpc.max_recv_msg_bytes", "0"),
        ("grpc.max_recv_msg_bytes", "2GiB"),
        ("grpc.max_recv_msg_bytes", "1.5B"),
        ("drain_timeout_s", "-1s"),
        ("drain_timeout_s", "2 weeks"),
        ("logging.level", "INFO"),
    ],
)
def test_text_out_of_range_is_refused(path: str, text: str) -> None:
    """Text that is not a value of the setting is refused, never rounded or taken for false."""
    setting = SETTINGS[tuple(path.split("."))]

    with pytest.raises(ValueRefused):
        read_value(setting, read_text(setting, text))


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("endpoints.http_port", True),
        ("endpoints.http_port", 1.0),
        ("endpoints.http_port", "8000"),
        ("endpoints.http_port", None),
        ("runtime.preallocate", 1),
        ("runtime.preallocate", "true"),
        ("runtime.mem_fraction", "0.5"),
        ("runtime.mem_fraction", True),
        ("models_include", "a"),
        ("models_include", [1]),
        ("models_include", [""]),
        ("endpoints.host", 127),
        ("drain_timeout_s", [1]),
        ("scheduler.discipline", {"fifo": 1}),
    ],
)
def test_value_of_a_file_is_not_coerced(path: str, raw: object) -> None:
    """In a file, integers are integers, booleans are booleans, and lists are lists."""
    setting = SETTINGS[tuple(path.split("."))]

    with pytest.raises(ValueRefused, match=r"^must be .*, got "):
        read_value(setting, raw)


def test_whole_number_is_good_for_a_fraction() -> None:
    """A setting that takes any number takes a whole one."""
    assert 1.0 == read_value(SETTINGS["runtime", "mem_fraction"], 1)


def test_message_is_short_whatever_came() -> None:
    """A refusal stays on one line and is not as long as what was given."""
    for raw in ("x" * 10**6, 10**5000, [1] * 10**5, {"a": 1}, "\x1b[2J\n"):
        with pytest.raises(ValueRefused) as caught:
            read_value(SETTINGS["endpoints", "http_port"], raw)
        assert len(str(caught.value)) < 200
        assert str(caught.value).isprintable()


def test_flag_is_named_like_its_setting() -> None:
    """A flag has the name of its setting, but for a few that read better without the section."""
    assert "--http-port" == flag_name(("endpoints", "http_port"))
    assert "--log-format" == flag_name(("logging", "format"))
    assert "REPO" == flag_name(("model_dirs",))
