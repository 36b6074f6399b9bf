"""The settings: schema, loading, resolving.

`load` reads them once per process; everything else takes the part it needs as a plain value.
"""

from hloserve.config.loading import LoadedConfig, ShownSetting, load, require_model_dirs
from hloserve.config.resolving import Resolved, resolve_hook_threads, resolve_log_format
from hloserve.config.schema import WorkerConfig
from hloserve.config.security_checks import require_safe_address

__all__ = [
    "LoadedConfig",
    "Resolved",
    "ShownSetting",
    "WorkerConfig",
    "load",
    "require_model_dirs",
    "require_safe_address",
    "resolve_hook_threads",
    "resolve_log_format",
]
