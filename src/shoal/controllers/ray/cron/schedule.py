"""When a schedule falls due: five cron fields, a name such as `@daily`, or `@every 90m`. Pure.

A time of day that the clock skips in spring does not run, one that it repeats in autumn runs twice. Where both days of
the month and days of the week are restricted, either is enough.
"""

from __future__ import annotations

import datetime
import zoneinfo
from collections.abc import Iterator

import msgspec

from shoal.controllers.ray.go_duration import go_duration
from shoal.errors import BadInput

_MONTHS = {
    name: at
    for at, name in enumerate(["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1)
}
_DAYS = {name: at for at, name in enumerate(["sun", "mon", "tue", "wed", "thu", "fri", "sat"])}
_FIELDS: tuple[tuple[str, int, int, dict[str, int]], ...] = (
    ("minute", 0, 59, {}),
    ("hour", 0, 23, {}),
    ("day of month", 1, 31, {}),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 6, _DAYS),
)
_NAMED = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_SECOND = 1_000_000
_FARTHEST = datetime.timedelta(days=5 * 366)
"""A date that has not come by then never comes."""


class _Field(msgspec.Struct, frozen=True):
    values: frozenset[int]
    is_any: bool


class CronSchedule(msgspec.Struct, frozen=True):
    """Either `fields` or `every`, in microseconds."""

    fields: tuple[_Field, ...] = ()
    every: int = 0

    def next_after(self, moment: int, zone: datetime.tzinfo) -> int | None:
        """The first time after a moment, both in microseconds since the epoch; None when there is none."""
        if self.every:
            return (moment + self.every) // _SECOND * _SECOND
        day = datetime.datetime.fromtimestamp(moment // _SECOND, zone).date()
        end = day + _FARTHEST
        while day <= end:
            if self._is_on(day):
                later = [found for found in self._on(day, zone) if found > moment]
                if later:
                    return min(later)
            day += datetime.timedelta(days=1)
        return None

    def newest_between(self, after: int, until: int, zone: datetime.tzinfo) -> int | None:
        """The last time after the one moment and not after the other."""
        if self.every:
            count = (until - after) // self.every
            return (after + count * self.every) // _SECOND * _SECOND if count > 0 else None
        first = datetime.datetime.fromtimestamp(after // _SECOND, zone).date()
        day = datetime.datetime.fromtimestamp(until // _SECOND, zone).date()
        while day >= first:
            if self._is_on(day):
                found = [one for one in self._on(day, zone) if after < one <= until]
                if found:
                    return max(found)
            day -= datetime.timedelta(days=1)
        return None

    def _is_on(self, day: datetime.date) -> bool:
        of_month, month, of_week = self.fields[2:]
        if day.month not in month.values:
            return False
        fits = (day.day in of_month.values, day.isoweekday() % 7 in of_week.values)
        return all(fits) if of_month.is_any or of_week.is_any else any(fits)

    def _on(self, day: datetime.date, zone: datetime.tzinfo) -> Iterator[int]:
        for hour in self.fields[1].values:
            for minute in self.fields[0].values:
                for fold in (0, 1):
                    wall = datetime.datetime(day.year, day.month, day.day, hour, minute, fold=fold, tzinfo=zone)
                    moment = wall.astimezone(datetime.UTC)
                    if moment.astimezone(zone).replace(fold=0, tzinfo=None) == wall.replace(fold=0, tzinfo=None):
                        yield int(moment.timestamp()) * _SECOND


def parse_schedule(text: str) -> CronSchedule:
    """Raises BadInput with what is wrong."""
    text = text.strip()
    if text.startswith("@every "):
        seconds = go_duration(text.removeprefix("@every "))
        if seconds is None:
            raise BadInput(f"{text!r}: @every takes a duration such as 90m")
        return CronSchedule(every=max(1, int(seconds)) * _SECOND)
    if text.startswith("@") and text not in _NAMED:
        raise BadInput(f"unrecognized descriptor: {text}")
    words = _NAMED.get(text, text).split()
    if len(words) != len(_FIELDS):
        raise BadInput(f"expected exactly 5 fields, found {len(words)}: {text!r}")
    return CronSchedule(tuple(_field(word, *about) for word, about in zip(words, _FIELDS, strict=True)))


def parse_zone(name: str) -> datetime.tzinfo:
    """Raises BadInput for a name that the time zone database does not have."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise BadInput(f"unknown time zone {name}") from None


def _field(word: str, called: str, low: int, high: int, named: dict[str, int]) -> _Field:
    values: set[int] = set()
    is_any = False
    for part in word.split(","):
        span, slash, step_text = part.partition("/")
        if slash and not (step_text.isascii() and step_text.isdigit() and int(step_text) > 0):
            raise BadInput(f"{called} {part!r}: a step is a number above 0")
        step = int(step_text) if slash else 1
        if span in ("*", "?"):
            begin, end = low, high
            is_any = is_any or step == 1
        else:
            first, dash, last = span.partition("-")
            begin = _number(first, called, named)
            end = _number(last, called, named) if dash else high if slash else begin
        if begin < low or end > high or begin > end:
            raise BadInput(f"{called} {part!r}: use {low} to {high}")
        values.update(range(begin, end + 1, step))
    return _Field(frozenset(values), is_any)


def _number(text: str, called: str, named: dict[str, int]) -> int:
    if text.lower() in named:
        return named[text.lower()]
    if not (text.isascii() and text.isdigit()) or len(text) > 4:
        raise BadInput(f"{called} {text!r} is not a number")
    return int(text)
