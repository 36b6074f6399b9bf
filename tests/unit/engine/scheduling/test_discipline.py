"""Which model goes next."""

from support.engine_models import build_model, dummy

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.fake_backend import FakeBackend
from hloserve.engine.scheduling.discipline import Fifo
from hloserve.engine.scheduling.model_queue import ModelQueue


def _queue(model: DeviceModel, *enqueued_ns: int) -> ModelQueue:
    queue = ModelQueue(model)
    for instant in enqueued_ns:
        request = dummy(model, 1)
        request.enqueued_ns = instant
        queue.requests.append(request)
    return queue


def _waiting(**enqueued_ns: list[int]) -> dict[DeviceModel, ModelQueue]:
    backend = FakeBackend()
    models = {name: build_model(backend, name=name) for name in enqueued_ns}
    return {models[name]: _queue(models[name], *at_ns) for name, at_ns in enqueued_ns.items()}


def test_fifo_serves_the_oldest_front_request() -> None:
    """The model whose first request came first goes first, however many others wait."""
    assert Fifo().pick(_waiting(a=[20, 21, 22, 23], b=[10], c=[15]), now_ns=100).name == "b"


def test_fifo_breaks_ties_by_name() -> None:
    """Of two requests that came at one instant, the smaller model name goes first."""
    assert Fifo().pick(_waiting(b=[10], a=[10], c=[10]), now_ns=100).name == "a"


def test_fifo_with_one_model_waiting() -> None:
    """A single waiting model is the choice."""
    assert Fifo().pick(_waiting(only=[10]), now_ns=100).name == "only"
