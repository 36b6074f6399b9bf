"""What passes the proof, what does not, and what is said of it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from support.proof_sources import FunctionSource, candidate, specs

from hloserve.bundle.io_spec import IOSpec
from hloserve.core.errors import ProofFailed
from hloserve.core.tensors import Array
from hloserve.export.options import ExportProgress
from hloserve.export.proof.prove import Candidate, Proof, ProofSettings, prove

pytestmark = pytest.mark.xla

RNG = np.random.default_rng(7)
W1 = RNG.standard_normal((4, 4)).astype(np.float32)
W2 = RNG.standard_normal((4, 4)).astype(np.float32)
WEIGHTS = (("w1", W1), ("w2", W2))
X = IOSpec("x", "f32", (1, 4), batch_axis=0)
Y = IOSpec("y", "f32", (1, 4), batch_axis=0)


def example(rows: int = 1) -> Array:
    """An input of rows of four."""
    return RNG.standard_normal((rows, 4)).astype(np.float32)


def mlp(x: Any, w1: Any, w2: Any) -> tuple[Any, ...]:
    """Two layers, for NumPy and JAX alike."""
    return (jnp.maximum(x @ w1, 0) @ w2,)


def mlp_source() -> FunctionSource:
    """The same in NumPy."""
    return FunctionSource(lambda x: [np.maximum(x @ W1, 0) @ W2], x=example())


def prove_mlp(*candidates: Candidate, source: FunctionSource | None = None, **how: Any) -> Proof:
    """Prove programs of the two layers."""
    settings = ProofSettings("m", **how)
    return prove(source or mlp_source(), candidates, WEIGHTS, specs(X), specs(Y), settings)


def mlp_program(size: int, function: Any = mlp, **more: Any) -> Candidate:
    """One of the two layers at a batch size."""
    return candidate(function, [example(size), W1, W2], size, **more)


def prove_one(function: Any, source: FunctionSource, outputs: list[IOSpec], **how: Any) -> Proof:
    """Prove an unbatched program without weights."""
    inputs = [IOSpec(name, array.dtype, array.shape) for name, array in source.inputs]
    program = candidate(function, [array for _, array in source.inputs])
    settings = ProofSettings("m", **how)
    return prove(source, [program], (), specs(*inputs), specs(*outputs), settings)


def test_a_right_program_is_proved_with_figures_per_output() -> None:
    """The report tells error, signal and tolerance of each output, and on how many inputs."""
    proof = prove_mlp(mlp_program(1), mlp_program(4))

    first, second = proof.programs
    assert (first.inputs_run, second.inputs_run) == (2, 1)
    for program in (first, second):
        (output,) = program.outputs
        assert output.name == "y"
        assert output.is_proved
        assert output.relative < 1e-5
        assert output.signal > 0.1
        assert output.tolerance == 1e-3
    assert proof.warnings == ()


def test_rows_of_one_batch_are_distinct_inputs() -> None:
    """A batch needs no second run: its rows differ from each other."""
    source = mlp_source()
    prove_mlp(mlp_program(8), source=source)

    run, alone = source.runs
    assert len(np.unique(run[0])) == run[0].size
    assert len(alone[0]) == 1


def test_exchanged_weights_of_one_shape_are_found() -> None:
    """Arguments of the same type that are in another order show in the numbers."""
    with pytest.raises(ProofFailed, match=r"'y' \(f32\) is off by up to .* of the .* passes") as e:
        prove_mlp(mlp_program(1, lambda x, w1, w2: mlp(x, w2, w1)))

    assert "arguments are in another order" in str(e.value)


def test_a_model_that_ignores_its_input_proves_nothing() -> None:
    """Agreement on a constant is no evidence, however exact it is."""
    source = FunctionSource(lambda x: [x * np.float32(0) + W1[:1]], x=example())
    with pytest.raises(ProofFailed, match="ignore its inputs, so that nothing is proved"):
        prove_mlp(mlp_program(1, lambda x, w1, w2: (x * 0 + w1[:1],)), source=source)


def test_a_signal_below_rounding_proves_nothing() -> None:
    """An untrained network whose output barely moves would pass any comparison with the output."""
    source = FunctionSource(lambda x: [x * np.float32(1e-9) + W1[:1]], x=example())
    with pytest.raises(ProofFailed, match="load the trained weights"):
        prove_mlp(mlp_program(1, lambda x, w1, w2: (x * 1e-9 + w1[:1],)), source=source)


def test_a_constant_output_beside_a_proved_one_passes() -> None:
    """A table of positions need not depend on the input, if it agrees to the last bits."""
    table = np.arange(4, dtype=np.float32)
    source = FunctionSource(lambda x: [x * 2, table], x=example())
    outputs = [Y, IOSpec("table", "f32", (4,))]
    program = candidate(lambda x: (x * 2, jnp.asarray(table)), [example()], 1)
    proof = prove(source, [program], (), specs(X), specs(*outputs), ProofSettings("m"))

    y, constant = proof.programs[0].outputs
    assert y.is_proved
    assert not constant.is_proved
    assert constant.error == 0


def test_a_constant_output_must_agree_to_the_last_bits() -> None:
    """A constant has no signal that would excuse an error."""
    table = np.arange(4, dtype=np.float32)
    source = FunctionSource(lambda x: [x * 2, table], x=example())
    outputs = [IOSpec("y", "f32", (1, 4)), IOSpec("table", "f32", (4,))]
    with pytest.raises(ProofFailed, match=r"'table' .* does not depend on the inputs"):
        prove_one(lambda x: (x * 2, jnp.asarray(table) + 1e-3), source, outputs)


def test_a_rank_zero_input_and_output_are_proved() -> None:
    """Scalars are tensors without axes."""
    source = FunctionSource(
        lambda x, t: [(x / t), x.sum() * t], x=example(), t=np.asarray(0.7, np.float32)
    )
    outputs = [IOSpec("y", "f32", (1, 4)), IOSpec("s", "f32", ())]
    proof = prove_one(lambda x, t: (x / t, x.sum() * t), source, outputs)

    assert all(output.is_proved for output in proof.programs[0].outputs)


def test_exchanged_outputs_are_named() -> None:
    """The message says which output of the source the program gives instead."""
    source = FunctionSource(lambda x: [x * 2, x * 3], x=example())
    outputs = [IOSpec("double", "f32", (1, 4)), IOSpec("triple", "f32", (1, 4))]
    with pytest.raises(ProofFailed, match="it agrees with the source's 'triple'"):
        prove_one(lambda x: (x * 3, x * 2), source, outputs)


def test_nan_must_be_where_the_source_has_it() -> None:
    """NaN compares with nothing, so its places are compared."""
    source = FunctionSource(lambda x: [np.where(x > 0, x, np.float32(np.nan))], x=example(16))
    outputs = [IOSpec("y", "f32", (16, 4))]
    with pytest.raises(ProofFailed, match="has NaN or infinity on one side only"):
        prove_one(lambda x: (jnp.where(x > 0, x, -x),), source, outputs)
    proof = prove_one(lambda x: (jnp.where(x > 0, x, jnp.nan),), source, outputs)

    assert "of the source's values are NaN" in proof.programs[0].outputs[0].note


def test_integers_without_floats_are_exact() -> None:
    """A model of integers alone has no rounding to excuse a difference."""
    ids = RNG.integers(0, 50, 2000)
    source = FunctionSource(lambda ids: [ids * 2], ids=ids)
    outputs = [IOSpec("y", "i64", (2000,))]

    def off_by_one_now_and_then(ids: Any) -> tuple[Any, ...]:
        return (ids * 2 + (jnp.arange(2000) == 7),)

    with pytest.raises(ProofFailed, match=r"differs in 0.05% of its elements; .* 0.00% may"):
        prove_one(off_by_one_now_and_then, source, outputs)


def test_a_wrong_argmax_is_found() -> None:
    """Integers that come of floats may differ at ties, and not elsewhere."""
    source = FunctionSource(lambda x: [x.argmax(-1)], x=RNG.standard_normal((50, 8)))
    outputs = [IOSpec("y", "i64", (50,))]
    with pytest.raises(ProofFailed, match=r"'y' \(i64\) differs in"):
        prove_one(lambda x: (x.argmin(-1),), source, outputs)
    proof = prove_one(lambda x: (x.argmax(-1),), source, outputs)

    assert proof.programs[0].outputs[0].error == 0


def test_a_near_tie_on_the_first_inputs_is_told_and_excused() -> None:
    """Where one batch fails and two more do not, the model decides between equals."""
    calls = 0

    def unstable(x: Array) -> list[Array]:
        nonlocal calls
        calls += 1
        return [x.argmax(-1) if calls > 1 else x.argmin(-1)]

    source = FunctionSource(unstable, x=RNG.standard_normal((50, 8)))
    proof = prove_one(lambda x: (x.argmax(-1),), source, [IOSpec("y", "i64", (50,))])

    assert proof.programs[0].outputs[0].is_proved
    assert "equal but for rounding" in proof.warnings[0]


def test_a_narrow_failure_says_what_helps() -> None:
    """An error as rounding makes it comes with the options that allow for it."""
    source = FunctionSource(lambda x: [x], x=example())
    outputs = [IOSpec("y", "f32", (1, 4))]
    with pytest.raises(ProofFailed, match=r"matmul_precision='highest'.*tolerance=") as e:
        prove_one(lambda x: (x * 1.004,), source, outputs)

    assert "when its inputs change in their last bit" in str(e.value)
    prove_one(lambda x: (x * 1.004,), source, outputs, tolerance=0.02)


def test_half_precision_anywhere_widens_the_tolerance() -> None:
    """A float32 result of bfloat16 weights is no more exact than these."""
    weight = W1.astype("bfloat16")
    source = FunctionSource(lambda x: [x @ weight.astype(np.float32)], x=example())
    program = candidate(
        lambda x, w: ((x.astype(jnp.bfloat16) @ w).astype(jnp.float32),), [example(), weight], 1
    )
    proof = prove(source, [program], (("w", weight),), specs(X), specs(Y), ProofSettings("m"))

    assert proof.programs[0].outputs[0].tolerance == 0.2


def test_types_are_compared_before_anything_runs() -> None:
    """Arity, dtypes and shapes of every program are findings of one error."""
    source = mlp_source()
    with pytest.raises(ProofFailed) as e:
        prove_mlp(
            mlp_program(2),
            candidate(lambda x, w1: (x @ w1,), [example(4), W1], 4),
            candidate(lambda x, a, b: mlp(x, a, b), [example(3), W1, W2], 8),
            source=source,
        )

    assert len(e.value.findings) >= 3
    assert "takes 2 arguments, the bundle declares 1 input and 2 weights" in str(e.value)
    assert source.runs == []


def test_refined_programs_beyond_the_second_are_checked_and_not_run() -> None:
    """What differs in extents only needs no third run, unless it is asked for."""
    programs = [mlp_program(size, is_refined=True) for size in (1, 2, 4)]
    some, every = prove_mlp(*programs), prove_mlp(*programs, every_size=True)

    assert [program.inputs_run for program in some.programs] == [2, 1, 0]
    assert [program.inputs_run for program in every.programs] == [2, 1, 1]


def test_programs_that_were_traced_apart_all_run() -> None:
    """A trace of its own may hold anything."""
    proof = prove_mlp(*[mlp_program(size) for size in (1, 2, 4)])

    assert [program.inputs_run for program in proof.programs] == [2, 1, 1]


def test_an_open_program_is_fixed_for_the_proof() -> None:
    """A dynamic batch is one file; it is proved at the sizes that it is given for."""
    import jax
    from jax import export

    rows, *_ = export.symbolic_shape("n")
    shapes = [jax.ShapeDtypeStruct(s, np.float32) for s in ((rows, 4), (4, 4), (4, 4))]
    traced = export.export(jax.jit(mlp, keep_unused=True), platforms=["cpu"])(*shapes)
    artifact = traced.mlir_module_serialized
    proof = prove_mlp(*[Candidate("model.mlir", artifact, size) for size in (1, 3)])

    assert [program.size for program in proof.programs] == [1, 3]
    assert all(program.outputs[0].is_proved for program in proof.programs)


def test_unused_inputs_are_reported() -> None:
    """An input that nothing depends on is served, and told of."""
    source = FunctionSource(lambda x, mask: [x * 2], x=example(), mask=example())
    proof = prove_one(lambda x, mask: (x * 2,), source, [IOSpec("y", "f32", (1, 4))])

    assert proof.unused_inputs == ("mask",)


def test_token_ids_stay_within_the_vocabulary_of_the_example() -> None:
    """Integers lie between the smallest and the largest of the example, both included."""
    table = RNG.standard_normal((10, 4)).astype(np.float32)
    ids = np.array([[0, 9, 3]])
    source = FunctionSource(lambda ids: [table[ids]], ids=ids)
    prove_one(lambda ids: (jnp.asarray(table)[ids],), source, [IOSpec("y", "f32", (1, 3, 4))])

    assert all(run[0].min() >= 0 and run[0].max() <= 9 for run in source.runs)


def test_a_source_that_fails_on_random_inputs_asks_for_samples() -> None:
    """The author knows what the model can take."""

    def picky(ids: Array) -> list[Array]:
        raise IndexError("index out of range in self")

    source = FunctionSource(picky, ids=np.array([0, 9]))
    with pytest.raises(ProofFailed, match=r"IndexError: index out of range.*sample_inputs"):
        prove_one(lambda ids: (ids * 2,), source, [IOSpec("y", "i64", (2,))])


def test_an_input_that_never_varies_is_named() -> None:
    """A placeholder of zeros says nothing about the values that a model takes."""
    ids = np.zeros((1, 4), np.int64)
    source = FunctionSource(lambda ids: [ids * 2], ids=ids)
    with pytest.raises(ProofFailed, match="'ids' is the same everywhere in the example"):
        prove_one(lambda ids: (ids * 2,), source, [IOSpec("y", "i64", (1, 4))])


def test_samples_of_the_author_are_used_and_checked() -> None:
    """`sample_inputs` gets the generator and the rows, and must give the program's types."""
    source = mlp_source()

    def sample(generator: np.random.Generator, rows: int) -> list[Array]:
        return [generator.uniform(5, 6, (rows, 4)).astype(np.float32)]

    prove_mlp(mlp_program(4), source=source, sample_inputs=sample)

    assert source.runs[0][0].min() >= 5
    with pytest.raises(ProofFailed, match=r"sample_inputs gave float64\[4, 4\] for 4 rows"):
        prove_mlp(mlp_program(4), sample_inputs=lambda g, rows: [g.uniform(size=(rows, 4))])


def test_a_source_of_other_types_is_told() -> None:
    """Results that lost width on the way are not what the model returns."""
    source = FunctionSource(lambda x: [x.argmax(-1).astype(np.int32)], x=example())
    with pytest.raises(ProofFailed, match=r"int64\[1\] in the program, the source returns int32"):
        prove_one(lambda x: (x.argmax(-1),), source, [IOSpec("y", "i64", (1,))])


def test_progress_hears_of_each_program_that_runs() -> None:
    """A proof of many programs shows how far it is."""

    class Heard(ExportProgress):
        def __init__(self) -> None:
            self.steps: list[tuple[str, int, int]] = []

        def step(self, what: str, done: int, total: int) -> None:
            self.steps.append((what, done, total))

    heard = Heard()
    prove_mlp(mlp_program(1), mlp_program(2), progress=heard)

    assert heard.steps == [("proving model.b1.mlir", 0, 2), ("proving model.b2.mlir", 1, 2)]


def test_equal_weights_are_noted() -> None:
    """Numbers cannot show the order of weights that hold the same."""
    zeros = np.zeros(4, np.float32)
    source = FunctionSource(lambda x: [x], x=example())
    program = candidate(lambda x, a, b: (x + a + b,), [example(), zeros, zeros], 1)
    weights = (("a", zeros), ("b", zeros))
    proof = prove(source, [program], weights, specs(X), specs(Y), ProofSettings("m"))

    assert "2 of 2 weights equal another one" in proof.notes[0]


def test_an_output_close_to_its_tolerance_is_noted() -> None:
    """An approximated operation looks like rounding, but larger than that of most models."""
    source = FunctionSource(lambda x: [x], x=example())
    proof = prove_one(lambda x: (x * 1.0004,), source, [IOSpec("y", "f32", (1, 4))])

    assert "an operation may be approximated" in proof.notes[0]


def test_a_constant_output_costs_no_second_run_at_larger_sizes() -> None:
    """That it is constant was found out at the smallest size."""
    table = np.arange(4, dtype=np.float32)
    source = FunctionSource(lambda x: [x * 2, table], x=example())
    outputs = [Y, IOSpec("table", "f32", (4,))]
    programs = [
        candidate(lambda x: (x * 2, jnp.asarray(table)), [example(n)], n) for n in (1, 4, 8)
    ]
    proof = prove(source, programs, (), specs(X), specs(*outputs), ProofSettings("m"))

    assert [program.inputs_run for program in proof.programs] == [2, 1, 1]


def test_a_batch_axis_may_be_any_axis() -> None:
    """Rows are compared along the axis that the spec names."""
    time_first = IOSpec("x", "f32", (5, 1, 4), batch_axis=1)
    x = RNG.standard_normal((5, 1, 4)).astype(np.float32)
    source = FunctionSource(lambda x: [x.sum(0)], x=x)
    program = candidate(lambda x: (x.sum(0),), [np.repeat(x, 3, 1)], 3)
    proof = prove(source, [program], (), specs(time_first), specs(Y), ProofSettings("m"))

    assert proof.programs[0].inputs_run == 1
    assert proof.programs[0].outputs[0].is_proved


def test_each_variant_is_proved_at_its_own_shape() -> None:
    """Samples of the author that are of another variant are replaced, with a warning."""
    source = FunctionSource(lambda x: [x.sum(-1)], x=example())
    inputs = specs(IOSpec("x", "f32", (1, -1), batch_axis=0, letters="w"))
    outputs = specs(IOSpec("y", "f32", (1,), batch_axis=0))
    programs = [
        candidate(lambda x: (x.sum(-1),), [np.zeros((2, w), np.float32)], 2, variable={"w": w})
        for w in (4, 6)
    ]

    def sample(generator: np.random.Generator, rows: int) -> list[Array]:
        return [generator.standard_normal((rows, 4)).astype(np.float32)]

    settings = ProofSettings("m", sample_inputs=sample)
    proof = prove(source, programs, (), inputs, outputs, settings)

    assert [run[0].shape for run in source.runs if len(run[0]) > 1] == [(2, 4), (2, 6)]
    assert [program.variant for program in proof.programs] == [{"w": 4}, {"w": 6}]
    (warning,) = proof.warnings
    assert "sample_inputs gave float32[2, 4] for 2 rows" in warning


def test_a_bool_output_is_proved() -> None:
    """A threshold of floats is counted like integers."""
    source = FunctionSource(lambda x: [x > 0], x=example(16))
    proof = prove_one(lambda x: (x > 0,), source, [IOSpec("y", "bool", (16, 4))])

    assert proof.programs[0].outputs[0].is_proved
    assert proof.programs[0].outputs[0].signal > 0


def test_a_program_that_xla_refuses_is_a_failed_proof() -> None:
    """A custom call that nobody knows cannot be compiled."""
    text = (
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {"
        "%0 = stablehlo.custom_call @nobody(%x) : (tensor<4xf32>) -> tensor<4xf32>"
        " return %0 : tensor<4xf32> }"
    )
    source = FunctionSource(lambda x: [x], x=np.ones(4, np.float32))
    program = Candidate("model.mlir", text.encode(), 0)
    with pytest.raises(ProofFailed, match="XLA cannot compile it"):
        prove(source, [program], (), specs(IOSpec("x", "f32", (4,))),
              specs(IOSpec("y", "f32", (4,))), ProofSettings("m"))  # fmt: skip


def test_a_program_with_more_results_than_outputs_is_refused() -> None:
    """Every result is exported under a name."""
    source = FunctionSource(lambda x: [x], x=example())
    with pytest.raises(ProofFailed, match="returns 2 results for 1 outputs"):
        prove_one(lambda x: (x, x), source, [IOSpec("y", "f32", (1, 4))])


def test_a_source_that_is_random_is_told_as_such() -> None:
    """Dropout that was left on is no fault of the program."""
    noise = np.random.default_rng(1)
    source = FunctionSource(lambda x: [x * noise.uniform(0.5, 1.5)], x=RNG.standard_normal((1, 4)))
    with pytest.raises(ProofFailed, match="gives another 'y' for the same inputs"):
        prove_one(lambda x: (x,), source, [IOSpec("y", "f64", (1, 4))])


def test_a_source_that_writes_into_its_inputs_is_compared_on_the_same_values() -> None:
    """The program does not see what the model left behind."""

    def in_place(x: Array) -> list[Array]:
        x *= 2
        return [x]

    source = FunctionSource(in_place, x=example())
    proof = prove_one(lambda x: (x * 2,), source, [IOSpec("y", "f32", (1, 4))])

    assert proof.programs[0].outputs[0].error == 0
