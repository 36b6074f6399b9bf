"""The settings of a worker: every key with its type, range, default and meaning.

What lives here: frozen structs and nothing else. What does not: the section `scheduler`
(`hloserve.config.scheduling_schema`), reading them from somewhere (`hloserve.config.loading`) and
values that depend on the machine (`hloserve.config.resolving`).
The sentences under the fields are the reference: `docs/configuration.md` is made from them.
Immutable; any thread.
"""

from typing import Annotated, Literal

from msgspec import Meta, field

from hloserve.config.scheduling_schema import SchedulerConfig
from hloserve.config.schema_types import (
    CompileOptions,
    Fraction,
    FractionOrNone,
    MessageBytes,
    Mode,
    OptionalPath,
    Path,
    Port,
    PositiveBytes,
    PositiveSeconds,
    Reading,
    Seconds,
    Section,
    Text,
    meta,
)

__all__ = [
    "AccessConfig",
    "EndpointsConfig",
    "GrpcConfig",
    "HooksConfig",
    "HttpConfig",
    "LoggingConfig",
    "MetasConfig",
    "RuntimeConfig",
    "SharedMemoryConfig",
    "TlsConfig",
    "WorkerConfig",
]


class RuntimeConfig(Section, frozen=True, kw_only=True):
    """The device that the worker runs on."""

    backend: Annotated[Literal["cpu", "cuda"], meta(Reading(aliases=(("gpu", "cuda"),)))] = "cpu"
    """Kind of device: `cpu`, or `cuda` for an NVIDIA GPU (`gpu` means the same)."""

    device_ordinal: Annotated[int, Meta(ge=0, le=1023)] = 0
    """Which of the devices of that kind, counted from 0."""

    mem_fraction: Fraction = 0.9
    """Share of the device's memory that the worker may use. The CPU backend has no such limit."""

    preallocate: bool = True
    """Take that share of device memory at once at start. Without effect on the CPU backend."""

    allow_cpu_fallback: bool = True
    """When `cuda` was asked for and cannot start: serve on the CPU, with a warning in the log at
    start (true), or end with an error (false)."""

    batch_sizes: Literal["all", "largest"] = "all"
    """Which of the compiled batch sizes of each model to load: `all`, or the `largest` only, which
    starts quicker and takes less memory, and pads every batch to that size."""

    executable_cache: bool = True
    """Keep compiled programs on disk, so that the next start compiles nothing."""

    executable_cache_dir: OptionalPath = ""
    """Where to keep them, for all models. Empty keeps those of a model in the directory `.cache` of
    its bundle; set it where bundles are read-only. They are machine code: whoever may write there
    runs code in this server."""

    executable_cache_bytes: PositiveBytes = 4 * 2**30
    """Most bytes of one such directory; the least recently used programs are removed first."""

    weights_migration: Literal["off", "copy", "replace"] = "off"
    """What to do at load with weights in the legacy layout, which every load has to permute. `off`
    reads them as they are. `copy` writes `weights.T.safetensors` beside them and names it in the
    manifest; older servers still read the original, so rolling back needs nothing. `replace` then
    puts the copy in the original's place, and the bundle becomes format 2.1. Both need the bundle
    writable and, meanwhile, room for a second copy; workers take turns. What cannot be migrated is
    logged (`weights_not_migrated`) and loads as it was. `hloserve migrate-weights` does the same
    ahead of a deployment."""

    load_threads: Annotated[int, Meta(ge=1, le=256)] | Literal["auto"] = "auto"
    """Number of bundles that are loaded at once; `auto` is the number of CPUs, at most 4."""

    dispatches_in_flight: Annotated[int, Meta(ge=1, le=8)] | Literal["auto"] = "auto"
    """Most batches that the device has been given and that are not answered. While one executes,
    the next one is laid together and transferred, so that the device does not wait for it; each
    takes staging memory and device memory of its own. `auto` is 2 on an accelerator and 1 on the
    CPU. There, 2 or more has XLA execute on a thread of its own: it keeps the CPU busy with models
    that compute for milliseconds, and adds some 30 us to those that compute for microseconds."""

    execution_timeout_seconds: Seconds = 300.0
    """Longest that the device may take for one batch, with bringing its weights. One that takes
    longer hangs, and nothing can interrupt it: its callers and those who wait are answered
    UNAVAILABLE (503), `execution_stuck` is logged, and the process ends with status 1, for its
    supervisor to start again. The default is far beyond what callers wait for, so that only a
    device that hangs meets it. 0 waits for ever."""

    cpu_threads: Annotated[int, Meta(ge=1, le=1024)] | Literal["auto"] = "auto"
    """Threads that one program computes with on the CPU; `auto` leaves it to XLA, which takes one
    for each CPU. Fewer leave cores to the server, or to other workers of the machine, and let two
    programs run side by side with `dispatches_in_flight: 2`."""

    reload_without_room: Literal["keep_old", "unload_first"] = "keep_old"
    """When a changed bundle is reloaded and the device cannot hold the old and the new model at
    once: go on with the old one and try again later (`keep_old`), or unload it first, so that
    requests are answered UNAVAILABLE (503) until the new one is ready (`unload_first`)."""

    weight_cache_bytes: PositiveBytes | None = None
    """Most bytes of weights to keep on the device. With it, models whose weights do not fit are
    loaded all the same: what is asked for is brought there, and takes the place of what is not
    asked for. On the CPU, evicted weights leave memory. Unset: on the CPU all weights stay; on an
    accelerator the two fractions below decide alone."""

    weight_cache_fraction: FractionOrNone = 1.0
    """On an accelerator that tells its memory, the most of it that weights may take; what the
    programs need beside them is measured and left free. 0 keeps all weights there from load to
    unload, and fails what does not fit. Without effect on the CPU."""

    weight_cache_wiggle_fraction: Annotated[float, Meta(ge=0, lt=1)] = 0.1
    """Share of the memory of an accelerator that is left alone in any case, for what the allocator
    cannot use. Without effect on the CPU."""

    residency_mode: Literal["self_managed", "external"] = "self_managed"
    """Who decides which weights are on the device, where there is a budget: the worker, by what is
    asked for (`self_managed`), or a controller (`external`), which pins and unpins models by the
    control service. Requests for a model that is not there are then answered UNAVAILABLE (503), so
    that a gateway asks another worker."""

    shared_host_weights: bool = False
    """Keep weights that are in the memory of the host in `/dev/shm`, one copy for all workers of
    the node. On the CPU device these are the weights that are computed with."""

    shared_host_weights_mode: Mode = "660"
    """Permissions of these files, in octal. Their owner must be able to read and write them, and so
    must other workers that are to share them. Whoever may write them decides what models answer."""

    numerics: Literal["auto", "f32", "tf32"] = "auto"
    """Precision of products and convolutions of float32 on a GPU. `auto` compiles what programs ask
    for. `f32` has all of them computed in float32, whatever they ask for, and tries at start that
    the device does. `tf32` is `auto` for a device that has TF32, and an error on another."""

    program_rewrites: bool = True
    """On the CPU, rewrite parts of programs to what it computes quicker, and use the options of XLA
    that were measured to be quicker. False compiles what is in the bundle, with XLA's defaults."""

    compile_options: CompileOptions = field(default_factory=dict)
    """Options of XLA by name, such as `xla_cpu_prefer_vector_width: 512`. They win over all other
    settings; one that XLA does not know is an error at start."""

    autotune: bool = True
    """On a GPU, let XLA try several kernels while it compiles and take the quickest. False makes
    the choice the same at every start, and needs no memory for trials."""

    autotune_cache: bool = False
    """Keep on disk what XLA found out by trying, so that the next start tries nothing."""

    autotune_cache_dir: OptionalPath = ""
    """Where to keep it. Without a directory nothing is kept, with a warning in the log."""


class EndpointsConfig(Section, frozen=True, kw_only=True):
    """Where the worker listens. Port 0 lets the system pick; `--ports-file` tells which."""

    host: Text = "127.0.0.1"
    """Address to bind: loopback unless told otherwise, `0.0.0.0` or `::` for every interface."""

    http_port: Port = 8000
    """Port of the REST endpoints."""

    grpc_port: Port = 8001
    """Port of the gRPC service."""

    admin_port: Port = 8002
    """Port of health, readiness and metrics."""

    insecure: bool = False
    """Bind an address that other machines can reach although there is neither TLS nor are there
    tokens. Only behind something that keeps strangers away."""

    max_concurrent_requests: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 1024
    """Most inference requests in flight, over all models; one more is answered RESOURCE_EXHAUSTED
    (429). 0 is no limit. Health and metadata calls are not counted."""

    max_request_bytes_in_hand: PositiveBytes | None = None
    """Most bytes of request messages that the process holds, over all connections: on their way,
    decompressed, and in flight. Large ones beyond it wait unread for some seconds, then they are
    answered RESOURCE_EXHAUSTED (429); one that is larger than it is refused at once. Unset
    means a quarter of the memory that the process may use."""


class TlsConfig(Section, frozen=True, kw_only=True):
    """TLS, on all ports or on none. Files are PEM, and read again when they change."""

    certificate: OptionalPath = ""
    """File of the server's certificate, followed by those between it and the root. Empty: no
    TLS."""

    key: OptionalPath = ""
    """File of the certificate's private key, not encrypted. Empty when the certificate's file holds
    it too."""

    client_ca: OptionalPath = ""
    """File of the authorities whose certificates clients must show (mutual TLS). Empty: clients
    need none."""

    client_ca_on_admin_port: bool = True
    """Ask for certificates of clients on the admin port as well. False lets in probes and
    Prometheus, which may have none; metrics still need a token where there are tokens."""

    minimum_version: Literal["1.2", "1.3"] = "1.2"
    """Oldest version of TLS that clients may speak."""


class AccessConfig(Section, frozen=True, kw_only=True):
    """Who may call."""

    tokens_file: OptionalPath = ""
    """File of the bearer tokens that are valid, a line for each: name, scopes, token. It is read
    again when it changes. Empty: calls need no token."""


class GrpcConfig(Section, frozen=True, kw_only=True):
    """Limits of the gRPC service."""

    max_recv_msg_bytes: MessageBytes = 512 * 2**20
    """Largest request message. A larger one is refused at its length prefix, before it is read."""

    max_send_msg_bytes: MessageBytes = 512 * 2**20
    """Largest response message. A larger one fails its request."""


class HttpConfig(Section, frozen=True, kw_only=True):
    """Limits of the REST and admin endpoints."""

    max_body_bytes: MessageBytes = 512 * 2**20
    """Largest request body; a larger one is answered 413 before it is read."""

    header_timeout_s: PositiveSeconds = 10.0
    """Time from a request's first byte to the end of its headers."""

    body_timeout_s: PositiveSeconds = 60.0
    """Longest pause between two pieces of a request's body."""

    idle_timeout_s: PositiveSeconds = 75.0
    """How long a connection without a request is kept open."""


class SharedMemoryConfig(Section, frozen=True, kw_only=True):
    """System shared memory: tensors that clients on the same machine leave in memory of theirs."""

    enabled: bool = False
    """Let clients register objects of `/dev/shm`, and place inputs and outputs in them. A client
    can name any object that this process may open, whoever made it, and read and write it by way of
    a model: enable it where all clients trust each other."""

    max_copied_bytes: PositiveBytes = 2 * 2**30
    """Most bytes of inputs that requests in flight have copied from shared memory; one more request
    is answered RESOURCE_EXHAUSTED (429). A small message can ask for a large copy."""


class HooksConfig(Section, frozen=True, kw_only=True):
    """What runs `preprocess` and `postprocess` of `model.py`."""

    threads: Annotated[int, Meta(ge=1, le=256)] | Literal["auto"] = "auto"
    """Number of hook threads; `auto` is the number of CPUs, at least 2 and at most 8."""

    max_processes: Annotated[int, Meta(ge=0, le=64)] = 8
    """Most processes that run the hooks of one model whose bundle asks for some (`hooks.processes`
    in its manifest); 0 runs all hooks on threads."""

    load_timeout_seconds: PositiveSeconds = 60.0
    """How long `model.py` may run when a bundle is loaded. One that has not ended by then fails its
    bundle, so that it does not hold up the others."""


class MetasConfig(Section, frozen=True, kw_only=True):
    """Meta models: bundles whose `run` calls other models of this worker."""

    concurrency: Annotated[int, Meta(ge=1, le=256)] = 2
    """Most requests to meta models that run at once, over all of them; more wait for their turn,
    until their deadline. Those that call no model (`calls: []`) are not counted."""

    scratch_bytes: Annotated[int, meta(Reading(unit="bytes"), ge=0, le=2**40)] = 2**30
    """Size of the block that `call.scratch` cuts its buffers from. The memory is taken when it is
    written first, and kept. 0 gives every request memory of its own."""

    scratch_slots: Annotated[int, Meta(ge=1, le=65536)] = 16
    """How many equal parts that block has; a request takes as many in a row as it needs."""

    exposed_models: tuple[Text, ...] = ()
    """Models that meta models call and that clients call as well. Others that a meta model calls
    are not in the repository index while it serves; they answer by name all the same. `*` hides
    none."""


class LoggingConfig(Section, frozen=True, kw_only=True):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is written."""

    format: Literal["auto", "text", "json"] = "auto"
    """`text` is `event key=value`, `json` one JSON object per line; `auto` is text on a terminal
    and JSON elsewhere."""


class WorkerConfig(Section, frozen=True, kw_only=True):
    """One worker process, which serves one device."""

    model_dirs: tuple[Path, ...] = ()
    """Model repositories: directories whose sub-directories are bundles. A relative path in a file
    is relative to that file. `serve` needs at least one, here or as its argument."""

    models_include: tuple[Text, ...] = ()
    """Names of the models to serve; empty serves all that are found."""

    model_control_mode: Literal["dynamic", "static", "explicit"] = "dynamic"
    """How models come and go. `dynamic` follows the repositories: bundles that appear are loaded,
    those that change reloaded, renamed ones renamed, and models whose bundle is gone unloaded.
    `static` loads every bundle once at start. `explicit` loads `startup_models` at start and then
    what clients load and unload through the repository extension, which the other modes refuse."""

    startup_models: tuple[Text, ...] = ("*",)
    """In mode `explicit`, the names of the models to load at start; `*` is all, empty none."""

    model_poll_seconds: PositiveSeconds = 15.0
    """In mode `dynamic`, the longest time between two looks at the repositories. Where the file
    system tells of changes, looks come at once; on network file systems this is all there is."""

    model_removal_seconds: Seconds = 5.0
    """In mode `dynamic`, how long a bundle must have been gone before its model is unloaded: longer
    than the pause between the two renames of a redeployment. Meanwhile the model serves."""

    model_settle_seconds: Seconds = 0.75
    """In mode `dynamic`, how long the files of a bundle must have been left alone before it is
    loaded. Raise it where bundles are copied in slowly, with pauses."""

    strict_startup: bool = False
    """End with an error when any bundle fails to load, instead of serving the others."""

    drain_timeout_s: Seconds = 10.0
    """How long requests in flight may still take after SIGTERM before they are cut off."""

    runtime: RuntimeConfig = RuntimeConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    endpoints: EndpointsConfig = EndpointsConfig()
    tls: TlsConfig = TlsConfig()
    access: AccessConfig = AccessConfig()
    grpc: GrpcConfig = GrpcConfig()
    http: HttpConfig = HttpConfig()
    shared_memory: SharedMemoryConfig = SharedMemoryConfig()
    hooks: HooksConfig = HooksConfig()
    metas: MetasConfig = MetasConfig()
    logging: LoggingConfig = LoggingConfig()
