"""Our protocol definitions: public numbers, a private pool, current generated code."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from tritonclient.grpc import service_pb2 as triton

from hloserve.wire.protos import POOL
from hloserve.wire.protos import inference_pb2 as ours

ROOT = Path(__file__).resolve().parents[3]
MAKE_PROTOS = ROOT / "tools" / "make_protos.py"

IMPORTS = {
    "hloserve": "import hloserve.wire.protos.inference_pb2",
    "tritonclient": "import tritonclient.grpc",
    "kserve": "from kserve.protocol.grpc import grpc_predict_v2_pb2",
}


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in a process of its own, where nothing is imported yet."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=50, check=False
    )


@pytest.mark.parametrize("other", ["tritonclient", "kserve"])
@pytest.mark.parametrize("is_first", [True, False], ids=["ours-first", "ours-second"])
def test_other_v2_libraries_can_be_imported_beside_ours(other: str, is_first: bool) -> None:
    """Ours shares a process with tritonclient or kserve, in any order.

    Those two cannot be imported together: both claim the default pool for the same names.
    """
    order = ("hloserve", other) if is_first else (other, "hloserve")
    program = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
    program += "\n".join(IMPORTS[library] for library in order)
    program += "\nprint('imported')"

    done = run("-W", "ignore", "-c", program)

    assert (done.returncode, done.stdout) == (0, "imported\n"), done.stderr[-300:]


def test_our_messages_are_not_in_the_default_pool() -> None:
    """Names that only our file has are known to our pool alone."""
    POOL.FindMessageTypeByName("inference.IsSameIPCNamespaceRequest")
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("inference.IsSameIPCNamespaceRequest")


def test_generated_code_is_current() -> None:
    """`make protos` leaves no difference."""
    done = run(str(MAKE_PROTOS), "--check")

    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_check_names_the_stale_file(tmp_path: Path) -> None:
    """A .proto file without current generated code fails the check and says what to run."""
    (tmp_path / "extra.proto").write_text('syntax = "proto3"; message Empty {}')

    before = run(str(MAKE_PROTOS), "--check", f"--protos={tmp_path}")
    run(str(MAKE_PROTOS), f"--protos={tmp_path}")
    after = run(str(MAKE_PROTOS), "--check", f"--protos={tmp_path}")

    assert before.returncode == 1
    assert f"{tmp_path / 'extra_pb2.py'}: not current; run `make protos`" in before.stdout
    assert (after.returncode, after.stdout) == (0, "")


def fields_of(message: Any) -> dict[str, tuple[object, ...]]:
    """Number, wire type and label of every field, by name; nested messages included."""
    fields: dict[str, tuple[object, ...]] = {
        f"{message.full_name}.{field.name}": (
            field.number,
            field.type,
            field.is_repeated,
            field.message_type.full_name if field.message_type else None,
            field.containing_oneof.name if field.containing_oneof else None,
        )
        for field in message.fields
    }
    for nested in message.nested_types:
        fields |= fields_of(nested)
    return fields


# Messages of ours that hold a part of Triton's fields only.
SUBSETS = {"ModelConfig", "ModelInput", "ModelOutput"}
# Fields of ours beyond Triton's; numbers from 1000 on, which readers of Triton's skip.
_REGION = "inference.SystemSharedMemoryStatusResponse.RegionStatus"
ADDITIONS = {
    "inference.ModelMetadataResponse.batch_sizes": 1000,
    f"{_REGION}.owner_uid": 1000,
    f"{_REGION}.requests": 1001,
    f"{_REGION}.age_s": 1002,
}


@pytest.mark.parametrize("name", sorted(triton.DESCRIPTOR.message_types_by_name))
def test_messages_have_tritons_fields_and_numbers(name: str) -> None:
    """Every message of Triton's service file is here, with the same fields and numbers."""
    theirs = fields_of(triton.DESCRIPTOR.message_types_by_name[name])
    own = fields_of(ours.DESCRIPTOR.message_types_by_name[name])

    assert theirs == {field: kind for field, kind in own.items() if field not in ADDITIONS}
    added = {field: kind[0] for field, kind in own.items() if field not in theirs}
    assert added.items() <= ADDITIONS.items()


@pytest.mark.parametrize("name", sorted(SUBSETS))
def test_model_configuration_is_a_subset_of_tritons(name: str) -> None:
    """The fields that we have of ModelConfig carry Triton's numbers."""
    theirs = fields_of(descriptor_pool.Default().FindMessageTypeByName(f"inference.{name}"))

    assert fields_of(ours.DESCRIPTOR.message_types_by_name[name]).items() <= theirs.items()


def test_service_has_every_method_of_triton() -> None:
    """The service offers Triton's methods with the same messages, and one of its own."""

    def signatures(service: Any) -> dict[str, tuple[object, ...]]:
        return {
            method.name: (
                method.input_type.full_name,
                method.output_type.full_name,
                method.client_streaming,
                method.server_streaming,
            )
            for method in service.methods
        }

    theirs = signatures(triton.DESCRIPTOR.services_by_name["GRPCInferenceService"])
    own = signatures(ours.DESCRIPTOR.services_by_name["GRPCInferenceService"])

    assert theirs == {name: own[name] for name in theirs}
    assert {"IsSameIPCNamespace"} == own.keys() - theirs.keys()
