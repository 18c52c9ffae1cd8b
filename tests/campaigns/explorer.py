"""Runs a workload once and checks what is left after every crash point and state of
`tests/campaigns/crash_states.py`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from afterlog.base.files import Files
from tests import campaigns
from tests.campaigns.crash_states import CrashModel, CrashPoints, CrashState
from tests.campaigns.simulated_disk import Image, Mark, SimulatedFiles, digest_of

Workload = Callable[[Files, SimulatedFiles], object]
"""Works on the files, and marks on the disk what it promised."""
POINTS = 8
"""Of so many points at which the power may be cut a run that takes a share makes the states of one: to make them all
takes longer than to verify a few."""
Verify = Callable[[SimulatedFiles, Sequence[object], CrashState], object]
"""Recovers on a crashed disk and raises if what it finds breaks a promise. Gets the marks before the crash."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A state in which `verify` raised. `explore(..., only=state)` runs just this one again."""

    state: str
    error: str


@dataclass(slots=True)
class Explored:
    """What `explore` went through."""

    points: int = 0
    states: int = 0
    distinct: int = 0
    """States that differ in content or in the marks before them."""
    verified: int = 0
    """Of these, in a run that takes a share."""
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.verified / self.seconds if self.seconds else 0.0
        found = f"{self.points} crash points, {self.states} states, {self.distinct} distinct"
        text = f"{found}, {self.verified} verified, {rate:.0f} states/s"
        return "\n".join([text, *(f"{failure.state}\n    {failure.error}" for failure in self.failures)])


def explore(
    workload: Workload,
    verify: Verify,
    *,
    wrap: Callable[[SimulatedFiles], Files] | None = None,
    model: CrashModel | None = None,
    image: Image | None = None,
    begin: object = None,
    kill: bool = False,
    again_every: int = 0,
    of: int = 1,
    whole: int = 1,
    phase: int | None = None,
    only: str | None = None,
    failures_max: int = 3,
) -> Explored:
    """Run `workload` once, then verify every state that a crash at any point of it may leave, or one in `of`, in a
    whole run one in `whole` of a third: which, the run's seed says, or `phase`.

    `wrap` puts something between the workload and the disk, a FailingFiles for instance. `image`: what is on the disk
    before. `begin`: the mark from which on it may crash. `kill`: kills of the process
    instead of power cuts. `again_every`: every so many states, also cut the power at every point of what `verify` did
    to the crashed disk (it gets the marks of both lives). `only` takes the description of one state. Marks must have
    the same repr in every run. Stops after `failures_max` failing states.
    """
    disk = SimulatedFiles(image)
    workload(disk if wrap is None else wrap(disk), disk)
    first = 0 if begin is None else 1 + [isinstance(each, Mark) and each.event for each in disk.operations].index(begin)
    share = _Share(of, whole, phase)
    explorer = _Explorer(verify, model or CrashModel(), again_every, share, only, failures_max, kill=kill)
    started = time.monotonic()
    with campaigns.quiet():
        explorer.explore(disk, first, CrashPoints.kills if kill else CrashPoints.power_cuts, (), "")
    explored = explorer.explored
    explored.seconds = time.monotonic() - started
    campaigns.count("crash states", explored.states)
    campaigns.count("crash states, distinct", explored.distinct)
    campaigns.count("crash states, verified", explored.verified)
    return explored


def first_failure(exploring: Callable[..., Explored]) -> Explored:
    """What sees a planted bug, whatever the seed: the state that is known to, or one in eight, and else all.

    exploring: `explore`, for which the share is left open.
    """
    shares: list[dict[str, Any]] = [{"of": 8, "phase": 0}, {"of": 1, "phase": 0}]
    for share in campaigns.known_first(shares):
        explored = exploring(**({"only": share} if isinstance(share, str) else share), failures_max=1)
        if explored.failures:
            campaigns.shown(explored.failures[0].state)
            break
    return explored


class _Share(NamedTuple):
    """Of the states, those that are verified; see `explore`."""

    of: int
    whole: int
    phase: int | None


class _Explorer:
    def __init__(
        self,
        verify: Verify,
        model: CrashModel,
        again_every: int,
        share: _Share,
        only: str | None,
        failures_max: int,
        *,
        kill: bool,
    ) -> None:
        self.explored = Explored()
        self._verify = verify
        self._model = model
        self._again_every = again_every
        self._share = share
        self._is_sparse = not (campaigns.WHOLE or kill or share.of < POINTS or share.phase is not None or only)
        self._only = only
        self._failures_max = failures_max
        self._seen: set[tuple[bytes, bytes]] = set()

    def explore(
        self,
        disk: SimulatedFiles,
        first: int,
        states: Callable[[CrashPoints], Iterator[CrashState]],
        marks: tuple[object, ...],
        prefix: str,
    ) -> None:
        """The crash points of `disk` from operation `first` on. A `prefix` names the crash that `disk` comes from."""
        points = CrashPoints(disk.start, self._model)
        oracle = list(marks)
        for operation in itertools.chain([None], tuple(disk.operations)):
            if operation is not None:
                points.apply(operation)
            if isinstance(operation, Mark) and len(points.operations) > first:
                oracle.append(operation.event)
            if len(points.operations) < first:
                continue
            self.explored.points += 1
            if self._is_sparse and not prefix and not campaigns.is_chosen(self.explored.points, POINTS):
                continue
            told = digest_of(repr(oracle).encode())
            for state in states(points):
                self._one(state, tuple(oracle), told, prefix)
                if len(self.explored.failures) >= self._failures_max:
                    return

    def _one(self, state: CrashState, marks: tuple[object, ...], told: bytes, prefix: str) -> None:
        self.explored.states += 1
        description = prefix + state.describe()
        if not (self._only or description).startswith(description):
            return
        if (state.digest, told) in self._seen:
            return
        self._seen.add((state.digest, told))
        self.explored.distinct += 1
        if not (self._only or self._is_chosen(self.explored.distinct)):
            return
        self.explored.verified += 1
        state.explored = self._is_explored(prefix)
        disk = state.files()
        first = len(disk.operations)
        try:
            self._verify(disk, marks, state)
        except Exception as error:
            if self._only in (None, description):
                self.explored.failures.append(Failure(description, f"{type(error).__name__}: {error}"))
            return
        if state.explored and len(disk.operations) > first:
            self.explore(disk, first, CrashPoints.power_cuts, marks, f"{description}, then ")

    def _is_chosen(self, number: int) -> bool:
        of, whole, phase = self._share
        if self._is_sparse:  # the seeds that take a point take all of its states, one after the other
            number += campaigns.SEED // POINTS - campaigns.SEED
        return campaigns.is_chosen(number, of, whole=whole) if phase is None else number % of == phase

    def _is_explored(self, prefix: str) -> bool:
        """Whether the power is cut in the life after this crash, too."""
        if prefix or not self._again_every:
            return False
        return self._only is not None or not (self.explored.verified + campaigns.SEED) % self._again_every
