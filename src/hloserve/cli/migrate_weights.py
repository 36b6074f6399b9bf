"""`hloserve migrate-weights`: legacy weights into program order, before a server meets them.

The work is `hloserve.bundle.migration`. Main thread, which draws; bundles on threads of a pool.
"""

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from hloserve.cli.bundle_arguments import all_bundles
from hloserve.cli.printing import error_text, print_json, safe
from hloserve.core.terminal_line import TerminalLine

if TYPE_CHECKING:
    from hloserve.bundle.migration import MigrationResult

__all__ = ["migrate_weights"]

_WORDS = {
    "migrated": "migrated",
    "planned": "would be migrated",
    "verified": "verified",
    "nothing_to_do": "nothing to do",
    "failed": "FAILED",
}

_PATIENCE_S = 1.0
"""For what runs when the command is interrupted."""


@click.command()
@click.argument(
    "directories",
    nargs=-1,
    required=True,
    metavar="DIR...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option(
    "--mode",
    metavar="MODE",
    type=click.Choice(["copy", "replace"]),
    help="copy adds a file beside the original, replace puts it in the original's place.",
)
@click.option("--dry-run", is_flag=True, help="Tell what would be done; change nothing.")
@click.option("--verify-only", is_flag=True, help="Prove copies again; change nothing.")
@click.option(
    "--jobs",
    metavar="N",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="How many bundles at once. Each takes memory for four copies of its largest weight.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def migrate_weights(  # an option is an argument
    directories: tuple[Path, ...],
    mode: Literal["copy", "replace"] | None,
    dry_run: bool,
    verify_only: bool,
    jobs: int,
    as_json: bool,
) -> int:
    """Bring legacy weights of bundles into the order in which programs take them.

    A DIR is a bundle, or a model repository: then all of its bundles. A legacy weights file (one
    without axis_order in its metadata, from before format 2.1) loads to the same arrays, but every
    load has to permute every tensor. Bundles that need nothing are left alone.

    --mode copy writes weights.T.safetensors beside weights.safetensors and adds the line
    'weights_file: weights.T.safetensors' to the manifest. The original and format_version stay, so
    older servers go on reading the bundle. When the original is redeployed, the copy is stale:
    servers read the original, and this command makes the copy again.

    --mode replace does the same, then sets format_version to 2.1, puts the copy in the place of
    weights.safetensors and removes the extra name and the line. Servers that know 2.0 only refuse
    the bundle from then on.

    Nothing is accepted without proof: every tensor is compared byte for byte with what two
    independent readers make of the original. It is safe to interrupt or to kill this command, and
    to run it beside servers: the bundle loads at any instant, and the next run goes on.

    --verify-only repeats the proof for bundles that have both files, and needs no --mode.

    The exit status is 1 when any bundle could not be migrated, or verified. The server extra must
    be installed, for the second reader.

    \b
    Examples:
      hloserve migrate-weights models/resnet --mode copy
      hloserve migrate-weights models/ --mode replace --dry-run
      hloserve migrate-weights models/ --mode replace --jobs 4
      hloserve migrate-weights models/ --verify-only --json
    """
    if mode is None and not verify_only:
        raise click.UsageError("say how: --mode copy or --mode replace")
    bundles = all_bundles(directories)
    run = _Runs(len(bundles), is_shown=sys.stderr.isatty())
    results = []
    for result in run.each(bundles, _action(run, mode, dry_run, verify_only), jobs):
        results.append(result)
        if not as_json:
            run.clear()
            _print(result)
    run.clear()
    if as_json:
        print_json(_describe(results))
    elif len(results) > 1:
        _print_total(results)
    return 1 if any(result.outcome == "failed" for result in results) else 0


def _action(
    run: "_Runs", mode: Literal["copy", "replace"] | None, dry_run: bool, verify_only: bool
) -> "Callable[[Path], MigrationResult]":
    from hloserve.bundle.disk import Disk
    from hloserve.bundle.migration import migrate_bundle, preview_migration, verify_migration

    def act(bundle: Path) -> "MigrationResult":
        if mode is None or verify_only:
            run.tell(bundle, "proving")
            return verify_migration(bundle)
        if dry_run:
            return preview_migration(bundle, mode)
        return migrate_bundle(
            bundle, mode, on_step=lambda step: run.tell(bundle, step), disk=Disk(run.check)
        )

    return act


class _Runs:
    """Runs bundles on a pool, and draws how far that is."""

    def __init__(self, total: int, *, is_shown: bool) -> None:
        self._line = TerminalLine(sys.stderr) if is_shown else None
        self._lock = threading.Lock()
        self._total = total
        self._done = 0
        self._is_interrupted = False

    def each(
        self,
        bundles: Sequence[Path],
        act: "Callable[[Path], MigrationResult]",
        jobs: int,
    ) -> "Iterator[MigrationResult]":
        """Results as they come."""
        pool = ThreadPoolExecutor(jobs)
        futures = [pool.submit(act, bundle) for bundle in bundles]
        try:
            for future in as_completed(futures):
                self._done += 1
                yield future.result()
        except BaseException:
            self._is_interrupted = True  # what is being written ends at its next piece
            pool.shutdown(wait=False, cancel_futures=True)
            if wait(futures, _PATIENCE_S).not_done:
                self.clear()
                click.echo(error_text("interrupted"), err=True)
                # A wait for a lock cannot be interrupted, and a migration may die at any instant.
                os._exit(130)
            raise
        pool.shutdown()

    def check(self, step: str) -> None:
        """Stop changing files when the command was interrupted."""
        if self._is_interrupted:
            raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))

    def tell(self, bundle: Path, step: str) -> None:
        """Draw what is being done. Any thread."""
        with self._lock:
            if self._line is not None:
                self._line.draw(self._done, self._total, f"{bundle.name}: {step}")

    def clear(self) -> None:
        """Make room for a line of the report."""
        with self._lock, suppress(OSError):
            if self._line is not None:
                self._line.clear()


def _print(result: "MigrationResult") -> None:
    reason = f": {result.reason}" if result.reason else ""
    took = f" in {result.seconds:.1f} s" if result.outcome in ("migrated", "verified") else ""
    click.echo(f"{safe(result.bundle)}: {_WORDS[result.outcome]}{took}{safe(reason)}")
    if result.outcome == "planned":
        for step in result.steps:
            click.echo(f"  - {step.value}")


def _print_total(results: "Sequence[MigrationResult]") -> None:
    counts = {
        word: sum(result.outcome == outcome for result in results)
        for outcome, word in _WORDS.items()
    }
    text = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    click.echo(f"{len(results)} bundles: {text}")


def _describe(results: "Sequence[MigrationResult]") -> dict[str, Any]:
    """What `--json` prints."""
    return {
        "ok": not any(result.outcome == "failed" for result in results),
        "bundles": [
            {
                "bundle": str(result.bundle),
                "outcome": result.outcome,
                "steps": [step.name.lower() for step in result.steps],
                "reason": result.reason,
                "seconds": round(result.seconds, 6),
            }
            for result in results
        ],
    }
