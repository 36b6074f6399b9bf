"""One worker for the whole suite: the requests do not disturb each other."""

from collections.abc import Iterator

import pytest
from support.conformance_worker import Asker, write_identities
from support.server_worker import running_worker


@pytest.fixture(scope="session")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """Raw access to a worker of identity models."""
    repository = tmp_path_factory.mktemp("identities")
    write_identities(repository)
    with running_worker(repository) as worker:
        asker = Asker(worker)
        asker.connect()  # or the first test that uses gRPC seems to leave sockets open
        yield asker
        asker.close()
