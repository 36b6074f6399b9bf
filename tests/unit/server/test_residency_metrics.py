"""What metrics say of weights that come and go."""

from collections.abc import Mapping
from pathlib import Path

from support.engine_residency import UNIT_BYTES, Shelf, shelf

from hloserve.engine.device_model import DeviceModel
from hloserve.engine.residency.floors import Floor, ResidencyStatus
from hloserve.engine.residency.placement import AllOnDevice
from hloserve.server.residency_metrics import residency_families


def _values(
    status: ResidencyStatus | None, models: Mapping[str, DeviceModel]
) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("model", "")): sample.value
        for family in residency_families(status, models)
        for sample in family.samples
    }


def _of(under_test: Shelf, *models: DeviceModel) -> dict[tuple[str, str], float]:
    return _values(under_test.cache.status(), {model.name: model for model in models})


def test_budget_and_what_loading_costs_are_told(tmp_path: Path) -> None:
    """Loads, evictions, hits and the time that executions waited are counters."""
    with shelf(tmp_path, 2) as under_test:
        pinned = under_test.admit("p", floor=Floor.DEVICE)
        a, b = under_test.admit("a"), under_test.admit("b")
        for model in (a, b, b):
            under_test.use(model)

        found = _of(under_test, pinned, a, b)

    assert [1, 0, 1] == [found["worker_model_resident", name] for name in "pab"]
    assert [1, 0, 0] == [found["worker_model_pinned", name] for name in "pab"]
    expected = {
        "worker_models_resident": 2,
        "worker_resident_weight_bytes": 2 * UNIT_BYTES,
        "worker_weight_cache_max_bytes": UNIT_BYTES,
        "worker_weight_cache_resident_bytes": UNIT_BYTES,
        "worker_weight_cache_pinned_bytes": UNIT_BYTES,
        "worker_weight_cache_max_scratch_bytes": 0,
        "worker_weight_pool_bytes": 2 * UNIT_BYTES,
        "worker_weight_loads_total": 3,
        "worker_weight_loaded_bytes_total": 3 * UNIT_BYTES,
        "worker_weight_evicts_total": 1,
        "worker_weight_hits_total": 1,
        "worker_weight_load_seconds_total": 0,
        "worker_weight_compactions_total": 0,
    }
    assert expected == {name: value for (name, model), value in found.items() if not model}


def test_pool_is_what_it_is_when_more_is_pinned(tmp_path: Path) -> None:
    """The budget of all weights does not grow with what is pinned beyond it."""
    with shelf(tmp_path, 1) as under_test:
        pinned = under_test.admit("p", 3, Floor.DEVICE)

        found = _of(under_test, pinned)

    assert UNIT_BYTES == found["worker_weight_pool_bytes", ""]


def test_without_a_budget_there_is_only_what_is_there(tmp_path: Path) -> None:
    """All weights are on the device, and nothing is told of a cache."""
    with shelf(tmp_path) as under_test:
        model = under_test.admit("a")
        status = AllOnDevice(under_test.backend).status()

        found = _values(status, {"a": model})

    assert 1 == found["worker_model_resident", "a"]
    assert not [name for name, _ in found if "cache" in name or "loads" in name]
    assert found == _values(None, {"a": model})
