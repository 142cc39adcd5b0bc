"""One leader at a time, and the fence around a past one's writes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from shoal.api.kind import Key
from shoal.api.kinds import CONFIG_MAP, LEASE
from shoal.api.meta import Json
from shoal.api.times import parse_time
from shoal.kube.cache import Cache
from shoal.kube.client import Client
from shoal.kube.clock import VirtualClock
from shoal.kube.feed import Feed
from shoal.kube.lease import Leadership, LeaseLost, LeaseSettings, Term
from shoal.kube.transport import Request, Response, Transport
from shoal.kube.writes import Writes
from tests.embedded import Embedded
from tests.faults import proven
from tests.faulty import FaultyTransport, Rates

from .conftest import Start
from .samples import config_map


class Replica:
    """One process taking part in the election, with a network of its own that can be taken away."""

    def __init__(self, server: Embedded, name: str, clock: VirtualClock) -> None:
        self.network = FaultyTransport(server.transport(), Rates(), seed=1, clock=clock)
        self.client = Client(self.network)
        self.leadership = Leadership(self.client, "shoal", "kube-system", name, clock=clock)
        self.terms: list[Term] = []
        self.led_until: list[float] = []
        self.clock = clock

    async def lead(self, term: Term) -> None:
        self.terms.append(term)
        try:
            await asyncio.Event().wait()
        finally:
            self.led_until.append(self.clock.monotonic())

    @property
    def leads(self) -> bool:
        return self.leadership.term is not None and self.leadership.term.left > 0


@pytest.fixture
def pair(server: Embedded, clock: VirtualClock) -> tuple[Replica, Replica]:
    return Replica(server, "first", clock), Replica(server, "second", clock)


async def test_one_leads_and_keeps_leading(
    pair: tuple[Replica, Replica], clock: VirtualClock, start: Start, client: Client
) -> None:
    first, second = pair
    start(first.leadership.run(first.lead))
    await clock.advance(1)
    start(second.leadership.run(second.lead))
    await clock.advance(300)
    assert first.leads and not second.leads
    assert len(first.terms) == 1
    lease = await client.get(LEASE, "shoal", "kube-system")
    assert lease["spec"]["holderIdentity"] == "first" and lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_stops_in_order_hands_over_at_once(
    pair: tuple[Replica, Replica], clock: VirtualClock, start: Start
) -> None:
    first, second = pair
    leading = start(first.leadership.run(first.lead))
    await clock.advance(1)
    start(second.leadership.run(second.lead))
    await clock.advance(1)
    leading.cancel()
    await clock.advance(1.6)
    assert second.leads
    assert second.terms[0].number == 2


@pytest.mark.parametrize("renewed_before", [0.01, 1.0, 2.9])
async def test_a_dead_leader_is_followed_within_the_lease_time(
    pair: tuple[Replica, Replica], clock: VirtualClock, start: Start, renewed_before: float
) -> None:
    first, second = pair
    start(first.leadership.run(first.lead))
    await clock.advance(1)
    start(second.leadership.run(second.lead))
    await clock.advance(59 + renewed_before)  # it renews every three seconds
    first.network.rates = Rates(unsent=1.0)
    await clock.advance(LeaseSettings().duration)
    assert second.leads and not first.leads
    first.network.calm()
    await clock.advance(60)
    assert second.leads and not first.leads


async def test_a_lease_is_given_back_when_the_last_write_has_been_answered(
    pair: tuple[Replica, Replica], clock: VirtualClock, start: Start, server: Embedded
) -> None:
    first, second = pair
    leading = start(first.leadership.run(first.lead))
    await clock.advance(1)
    fenced = first.leadership.fenced(first.terms[0])
    fenced.transport.inner = slow = Slow(server.transport(), clock)  # type: ignore[attr-defined]
    writing = start(fenced.create(CONFIG_MAP, config_map("last"), "team"))
    start(second.leadership.run(second.lead))
    await clock.advance(0.5)
    leading.cancel()
    await clock.advance(slow.seconds - 1)
    assert not second.leads and server.snapshot(CONFIG_MAP) == {}
    await clock.advance(2.2)
    assert second.leads and writing.done() and len(server.snapshot(CONFIG_MAP)) == 1


class Slow:
    """A connection on which every request travels for some seconds."""

    def __init__(self, inner: Transport, clock: VirtualClock, seconds: float = 4.0) -> None:
        self._inner, self._clock, self.seconds = inner, clock, seconds

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        await self._clock.sleep(self.seconds)
        return await self._inner.send(request, timeout=timeout)


def _reads_before_each_renewal(patch: pytest.MonkeyPatch) -> None:
    real = Leadership._renew_once
    patch.setattr(Leadership, "_renew_once", lambda self, term, client, known: real(self, term, client, None))


@proven(without=_reads_before_each_renewal)
async def test_f701_a_leader_stays_one_while_the_api_server_is_slow(
    server: Embedded, clock: VirtualClock, start: Start
) -> None:
    """F701: the API server is so busy that every answer takes almost four seconds. Holds: the leader leads on; a change
    of leader would read everything again and make it busier."""
    first = Replica(server, "first", clock)
    first.leadership._client = Client(slow := Slow(first.network, clock, 0.01))  # type: ignore[arg-type]
    start(first.leadership.run(first.lead))
    await clock.advance(10)
    slow.seconds = 3.8
    await clock.advance(300)
    assert first.leads and len(first.terms) == 1
    first.leadership._client = first.client  # the lease is given back without a wait


def _the_term_is_never_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Term, "check", lambda self: None)
    patch.setattr(Term, "left", property(lambda self: 30.0))


@proven(without=_the_term_is_never_checked)
async def test_f043_a_leader_that_cannot_renew_stops_writing_before_another_leads(
    pair: tuple[Replica, Replica], clock: VirtualClock, start: Start, server: Embedded
) -> None:
    """F43: the old leader's shutdown hangs past its lease. Holds: its writes stop before the lease can be taken."""
    first, second = pair

    async def hang(term: Term) -> None:
        """Does not react to being told that the term is over."""
        fenced = first.leadership.fenced(term)
        fenced.transport.inner = server.transport()  # type: ignore[attr-defined]
        for number in range(60):
            try:
                await fenced.create(CONFIG_MAP, config_map(f"w{number}", at=str(clock.monotonic())), "team")
                await clock.sleep(0.5)
            except (LeaseLost, asyncio.CancelledError):
                await clock.sleep(0.5)

    start(first.leadership.run(hang))
    await clock.advance(1)
    start(second.leadership.run(second.lead))
    await clock.advance(10)
    first.network.rates = Rates(unsent=1.0)  # renewals fail from here on; its writes take another way
    cut_at = clock.monotonic()
    took_at = None
    for _ in range(200):
        await clock.advance(0.1)
        if took_at is None and second.leads:
            took_at = clock.monotonic()
    assert took_at is not None and took_at - cut_at < LeaseSettings().duration
    written = [float(obj["data"]["at"]) for obj in server.snapshot(CONFIG_MAP).values()]
    assert any(at > cut_at for at in written), "the old leader did go on for a while"
    assert max(written) < took_at


@proven(without=_the_term_is_never_checked)
async def test_f044_writes_queued_before_a_freeze_do_not_go_out_after_it(
    pair: tuple[Replica, Replica], clock: VirtualClock, start: Start, server: Embedded
) -> None:
    """F44: a leader is frozen and woken. Holds: a write queued before the freeze does not go out after it."""
    first, _ = pair
    start(first.leadership.run(first.lead))
    await clock.advance(1)
    term = first.terms[0]
    writer = Writes(first.leadership.fenced(term), in_flight=1, attempts=1, clock=clock).writer("first")
    queued = [writer.create(CONFIG_MAP, config_map(f"w{number}")) for number in range(3)]
    clock._move(clock.monotonic() + 60)  # everything stands still for a minute, then goes on where it was
    outcomes = await asyncio.gather(*queued, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [LeaseLost] * 3
    assert server.snapshot(CONFIG_MAP) == {}


async def test_a_lost_term_does_not_come_back(clock: VirtualClock) -> None:
    term = Term(1, 10.0, clock)
    term.check()
    term.end()
    term.extend(100.0)
    with pytest.raises(LeaseLost, match="term 1 has ended"):
        term.check()


async def test_a_takeover_whose_answer_was_lost_is_not_waited_for(
    server: Embedded, clock: VirtualClock, start: Start
) -> None:
    replica = Replica(server, "only", clock)
    replica.network.rates = Rates(lost_answer=1.0)
    start(replica.leadership.run(replica.lead))
    await clock.advance(0.1)
    replica.network.calm()
    await clock.advance(33)
    assert replica.leads


def _believe_written_times(patch: pytest.MonkeyPatch) -> None:
    def is_free(self: Leadership, lease: Json) -> bool:
        renewed = parse_time(lease["spec"]["renewTime"])
        return self._clock.now() - renewed > self._settings.duration * 1_000_000

    patch.setattr(Leadership, "_is_free", is_free)


@pytest.mark.parametrize("hours", [-5, 5])
@proven(without=_believe_written_times)
async def test_f063_clocks_that_differ_do_not_change_who_leads(
    server: Embedded, start: Start, clock: VirtualClock, hours: int
) -> None:
    """F63: clocks of client and server differ or step. Holds: no decision compares the two."""

    class Skewed(VirtualClock):
        """The same passing of time under another wall time."""

        def now(self) -> int:
            return clock.now() + hours * 3_600_000_000

        def monotonic(self) -> float:
            return clock.monotonic()

        async def sleep(self, seconds: float) -> None:
            await clock.sleep(seconds)

    first, second = Replica(server, "first", clock), Replica(server, "second", Skewed())
    start(first.leadership.run(first.lead))
    await clock.advance(1)
    start(second.leadership.run(second.lead))
    await clock.advance(60)
    assert first.leads and second.terms == []
    clock.step_wall(-7200)
    await clock.advance(60)
    clock.step_wall(14400)
    await clock.advance(60)
    assert first.leads and second.terms == []
    first.network.rates = Rates(unsent=1.0)
    await clock.advance(LeaseSettings().duration)
    assert second.leads


def _no_catching_up(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Feed) -> None:
        return None

    patch.setattr(Feed, "catch_up", nothing)


@proven(without=_no_catching_up)
async def test_f042_a_standby_that_takes_over_has_seen_all_that_was_acknowledged(
    server: Embedded, client: Client, clock: VirtualClock, start: Start
) -> None:
    """F42: a standby misses events or keeps the dead. Holds: it keeps a full cache; taking over is one comparison."""
    network = FaultyTransport(server.transport(), Rates(), seed=1, clock=clock)
    await client.create(CONFIG_MAP, config_map("dies"), "team")
    standby: Cache[Any] = Cache(Client(network), CONFIG_MAP, clock=clock)
    start(standby.run())
    await clock.advance(1)
    assert len(standby) == 1  # full before it leads
    network.rates = Rates(delayed=1.0)  # its watch lags behind the leader's last writes
    await client.delete(CONFIG_MAP, "dies", "team")
    await client.create(CONFIG_MAP, config_map("lives"), "team")
    await standby.catch_up()
    assert list(standby) == [Key("team", "lives")]
