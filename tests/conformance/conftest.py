"""One worker for the whole suite: the requests do not disturb each other."""

from collections.abc import Iterator

import pytest
from support.conformance_worker import Asker, tensor, write_identities, write_text_models
from support.server_worker import running_worker


@pytest.fixture(scope="session")
def asker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    """Raw access to a worker of identity models."""
    repository = tmp_path_factory.mktemp("identities")
    write_identities(repository)
    write_text_models(repository)
    with running_worker(repository) as worker:
        asker = Asker(worker)
        asker.connect()  # or the first test that uses gRPC seems to leave sockets open
        asker.infer("text", tensor("BYTES", [1, 2], ["", ""], "text"))  # nor hook threads
        yield asker
        asker.close()
