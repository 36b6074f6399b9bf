"""Keys that a node file may hold from elsewhere, and what to write instead.

What lives here: one table. It turns "unknown key" into the next step for those who come from
ReactantServer.jl or from a later version of the file. Immutable; any thread.
"""

from collections.abc import Mapping

__all__ = ["FOREIGN_KEYS"]

_FLEET = "is not available in this version: a file describes one worker"

FOREIGN_KEYS: Mapping[tuple[str, ...], str] = {
    ("batch_policy",): "was removed; use scheduler.models.<name>.max_batch_size",
    ("cache_dir",): (
        "is not a setting; use runtime.executable_cache_dir and runtime.autotune_cache_dir"
    ),
    ("model_repo",): "is not a setting of a worker; use model_dirs",
    ("base_port",): "is not a setting of a worker; use endpoints.grpc_port",
    ("metrics_base_port",): "is not a setting of a worker; use endpoints.admin_port",
    ("gpus",): _FLEET,
    ("role",): _FLEET,
    ("global",): f"{_FLEET}; write its blocks at the top level",
    ("workers",): _FLEET,
    ("models",): f"{_FLEET}; settings of single models are under scheduler.models",
    ("shared_host_weights",): "is called runtime.shared_host_weights here",
    ("scheduler", "cost_ema_alpha"): (
        "is not a setting: a quicker run is what a program costs from then on, and slower ones move"
        " that little"
    ),
    ("scheduler", "dispatch_timeout_seconds"): (
        "was never enforced and is not a setting; clients set a deadline per request"
    ),
    ("scheduler", "models", "<model>", "pin_to_gpu"): (
        "is not a setting; write scheduler.models.<name>.residency: device"
    ),
    ("endpoints", "port"): "is called endpoints.grpc_port here",
    ("endpoints", "metrics_port"): "is called endpoints.admin_port here",
}
"""Reason by path; it follows the key in a message."""
