"""Limits of the process that listens."""

import resource

from hloserve.server.listening import allow_many_connections


def test_the_limit_of_open_files_is_raised_as_far_as_allowed() -> None:
    """Shells begin with a thousand; a second call changes nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
        allow_many_connections()
        allow_many_connections()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert raised == (hard, hard)
