# mypy: disable-error-code=type-arg
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Residency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESIDENCY_UNSPECIFIED: _ClassVar[Residency]
    UNPINNED: _ClassVar[Residency]
    PINNED_SYSTEM: _ClassVar[Residency]
    PINNED_DEVICE: _ClassVar[Residency]
RESIDENCY_UNSPECIFIED: Residency
UNPINNED: Residency
PINNED_SYSTEM: Residency
PINNED_DEVICE: Residency

class ModelControlStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelControlStatusResponse(_message.Message):
    __slots__ = ("residency_mode", "discipline", "models", "weight_cache_max_bytes", "has_weight_cache", "weight_cache_resident_bytes", "weight_cache_pinned_bytes", "weight_cache_scratch_bytes", "weight_loads", "weight_loaded_bytes", "weight_load_seconds", "weight_evictions", "weight_hits", "compactions")
    RESIDENCY_MODE_FIELD_NUMBER: _ClassVar[int]
    DISCIPLINE_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CACHE_MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    HAS_WEIGHT_CACHE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CACHE_RESIDENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CACHE_PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CACHE_SCRATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_LOADS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_LOADED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_LOAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_HITS_FIELD_NUMBER: _ClassVar[int]
    COMPACTIONS_FIELD_NUMBER: _ClassVar[int]
    residency_mode: str
    discipline: str
    models: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    weight_cache_max_bytes: int
    has_weight_cache: bool
    weight_cache_resident_bytes: int
    weight_cache_pinned_bytes: int
    weight_cache_scratch_bytes: int
    weight_loads: int
    weight_loaded_bytes: int
    weight_load_seconds: float
    weight_evictions: int
    weight_hits: int
    compactions: int
    def __init__(self, residency_mode: _Optional[str] = ..., discipline: _Optional[str] = ..., models: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ..., weight_cache_max_bytes: _Optional[int] = ..., has_weight_cache: bool = ..., weight_cache_resident_bytes: _Optional[int] = ..., weight_cache_pinned_bytes: _Optional[int] = ..., weight_cache_scratch_bytes: _Optional[int] = ..., weight_loads: _Optional[int] = ..., weight_loaded_bytes: _Optional[int] = ..., weight_load_seconds: _Optional[float] = ..., weight_evictions: _Optional[int] = ..., weight_hits: _Optional[int] = ..., compactions: _Optional[int] = ...) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("name", "residency", "device_resident", "host_resident", "weight_nbytes", "weight", "queue_depth", "total_compute_seconds", "requests_served", "dispatch_count", "max_batch_size", "batch_input_name", "batch_axis", "rows_served", "padded_rows", "requests_expired", "requests_failed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    HOST_RESIDENT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_NBYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_DEPTH_FIELD_NUMBER: _ClassVar[int]
    TOTAL_COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_SERVED_FIELD_NUMBER: _ClassVar[int]
    DISPATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_INPUT_NAME_FIELD_NUMBER: _ClassVar[int]
    BATCH_AXIS_FIELD_NUMBER: _ClassVar[int]
    ROWS_SERVED_FIELD_NUMBER: _ClassVar[int]
    PADDED_ROWS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FAILED_FIELD_NUMBER: _ClassVar[int]
    name: str
    residency: Residency
    device_resident: bool
    host_resident: bool
    weight_nbytes: int
    weight: float
    queue_depth: int
    total_compute_seconds: float
    requests_served: int
    dispatch_count: int
    max_batch_size: int
    batch_input_name: str
    batch_axis: int
    rows_served: int
    padded_rows: int
    requests_expired: int
    requests_failed: int
    def __init__(self, name: _Optional[str] = ..., residency: _Optional[_Union[Residency, str]] = ..., device_resident: bool = ..., host_resident: bool = ..., weight_nbytes: _Optional[int] = ..., weight: _Optional[float] = ..., queue_depth: _Optional[int] = ..., total_compute_seconds: _Optional[float] = ..., requests_served: _Optional[int] = ..., dispatch_count: _Optional[int] = ..., max_batch_size: _Optional[int] = ..., batch_input_name: _Optional[str] = ..., batch_axis: _Optional[int] = ..., rows_served: _Optional[int] = ..., padded_rows: _Optional[int] = ..., requests_expired: _Optional[int] = ..., requests_failed: _Optional[int] = ...) -> None: ...

class SetModelResidencyRequest(_message.Message):
    __slots__ = ("name", "target")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    name: str
    target: Residency
    def __init__(self, name: _Optional[str] = ..., target: _Optional[_Union[Residency, str]] = ...) -> None: ...

class SetModelResidencyResponse(_message.Message):
    __slots__ = ("residency",)
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    residency: Residency
    def __init__(self, residency: _Optional[_Union[Residency, str]] = ...) -> None: ...

class SetModelPolicyRequest(_message.Message):
    __slots__ = ("name", "has_weight", "weight")
    NAME_FIELD_NUMBER: _ClassVar[int]
    HAS_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    name: str
    has_weight: bool
    weight: float
    def __init__(self, name: _Optional[str] = ..., has_weight: bool = ..., weight: _Optional[float] = ...) -> None: ...

class SetModelPolicyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompactMemoryRequest(_message.Message):
    __slots__ = ("reload_models",)
    RELOAD_MODELS_FIELD_NUMBER: _ClassVar[int]
    reload_models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, reload_models: _Optional[_Iterable[str]] = ...) -> None: ...

class CompactMemoryResponse(_message.Message):
    __slots__ = ("reloaded_models", "resident_bytes_after")
    RELOADED_MODELS_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    reloaded_models: int
    resident_bytes_after: int
    def __init__(self, reloaded_models: _Optional[int] = ..., resident_bytes_after: _Optional[int] = ...) -> None: ...
