// The last day as bars: when each gang waited, when it ran, how it ended.

import { get } from './api.js';
import { Rows, fill, h, say } from './dom.js';
import { age, clock, count, span } from './format.js';
import { STAGES, gangLink } from './gangs.js';
import { notice } from './notices.js';
import { watch } from './overview.js';
import { matches, setState, state, store } from './store.js';

const SPANS = { '': 24, '6h': 6, '1h': 1 };
const NAMES = { '': '24 hours', '6h': '6 hours', '1h': '1 hour' };
const AGAIN = 30000;

export function mount(main) {
  const told = notice();
  const chips = h('div', { class: 'chips', role: 'group', 'aria-label': 'Show the last' });
  const axis = h('div', { class: 'axis', 'aria-hidden': 'true' });
  const body = h('ol', { class: 'gantt', 'aria-label': 'Gangs' });
  const none = h('p', { class: 'quiet', role: 'status' });
  const legend = h('p', { class: 'legend quiet' }, h('span', { class: 'swatch waits' }), ' waited ', h('span', { class: 'swatch running' }), ' runs ',
    h('span', { class: 'swatch succeeded' }), ' succeeded ', h('span', { class: 'swatch failed' }), ' failed');
  fill(main, h('h1', {}, 'Timeline'), told.place, chips, legend, h('div', { class: 'card chart' }, axis, body), none);
  const missing = h('p', { class: 'quiet' });
  main.append(missing);
  let past = [];
  let now = Date.now();
  const rows = new Rows(body, (row) => bar(row));

  function update() {
    const { q, span: chosen = '' } = state();
    const hours = SPANS[chosen] || 24;
    now = Date.now();
    const from = now - hours * 3600e3;
    const found = joined(store.list('gangs'), past)
      .filter((row) => matches(row, q) && (!row.ended || Date.parse(row.ended) > from))
      .sort((a, b) => (a.created < b.created ? -1 : 1));
    showChips(chips, chosen);
    fill(axis, ticks(from, now, hours));
    rows.show(found.map((row) => placed(row, from, now)));
    const kept = new Set(found.map((row) => row.id));
    for (const id of drawn.keys()) if (!kept.has(id)) drawn.delete(id);
    say(none, found.length ? '' : store.loaded ? 'Nothing ran or waited in this time.' : 'Loading …');
    told.update();
  }

  async function look() {
    try {
      const told = await get('/data/history', { namespace: state().namespace || '' });
      past = told.runs;
      say(missing, told.notAnswered ? `Gangs that are gone are not shown: ${told.notAnswered}.` : told.hidden ? `${count(told.hidden, 'gang')} that you may not read ${told.hidden === 1 ? 'is' : 'are'} not shown.` : '');
    } catch { return; }
    update();
  }
  const watching = watch(update);
  look();
  const again = setInterval(() => { update(); look(); }, AGAIN);
  return { unmount() { clearInterval(again); watching.unmount(); } };
}

// Rows as they are stored, with the earlier rounds that the history knows; then gangs that are gone.
function joined(rows, past) {
  const rounds = new Map();
  for (const run of past) {
    const key = `${run.kind}/${run.namespace}/${run.name}`;
    if (!rounds.has(key)) rounds.set(key, []);
    rounds.get(key).push(run);
  }
  const stored = rows.map((row) => {
    const key = `${row.kind}/${row.namespace}/${row.name}`;
    const own = (rounds.get(key) || []).filter((run) => Date.parse(run.queuedAt) > Date.parse(row.created) - 5000);
    if (own.length) rounds.set(key, rounds.get(key).filter((run) => !own.includes(run)));
    const earlier = own.filter((run) => run.outcome === 'Requeued' || run.outcome === 'Preempted');
    return { ...row, earlier, from: earlier.length ? Math.max(...earlier.map((run) => Date.parse(run.endedAt))) : Date.parse(row.created) };
  });
  const gone = [...rounds.values()].flat().filter((run) => run.endedAt).map((run) => ({
    id: `${run.uid}/${run.round || 1}`, namespace: run.namespace, kind: run.kind, name: run.name, queue: run.queue, created: run.queuedAt,
    from: Date.parse(run.queuedAt), started: run.startedAt, ended: run.endedAt, earlier: [], stage: STAGE[run.outcome] || 'ended', state: run.outcome,
  }));
  return [...stored, ...gone];
}

const STAGE = { Succeeded: 'succeeded', Failed: 'failed' };

// The same object while its bar would look the same.
const drawn = new Map();
function placed(row, from, now) {
  const at = (moment) => Math.max(0, Math.min(100, (100 * (moment - from)) / (now - from)));
  const pieces = [];
  const piece = (name, begin, end) => { if (end > from && end > begin) pieces.push([name, at(begin), at(end) - at(begin)]); };
  for (const run of row.earlier) {
    const [queued, started, ended] = [run.queuedAt, run.startedAt || run.endedAt, run.endedAt].map(Date.parse);
    piece('waits', queued, started);
    piece('requeued', started, ended);
  }
  const ended = row.ended ? Date.parse(row.ended) : now;
  const started = row.started ? Date.parse(row.started) : ended;
  piece('waits', row.from, started);
  if (row.started) piece(row.stage, started, Math.max(ended, started + 1));
  const key = JSON.stringify(pieces.map(([name, left, width]) => [name, left.toFixed(1), width.toFixed(1)])) + row.stage + row.name;
  const old = drawn.get(row.id);
  if (old?.key === key) return old;
  const fresh = { ...row, key, pieces };
  drawn.set(row.id, fresh);
  return fresh;
}

function bar(row) {
  const until = row.ended ? Date.parse(row.ended) : Date.now();
  const waited = span(Math.max(0, Math.round(((row.started ? Date.parse(row.started) : until) - row.from) / 1000)));
  const ran = row.started ? `, ran ${age(row.started, until)}` : '';
  const before = row.earlier.length ? `, ${count(row.earlier.length, 'earlier round')}` : '';
  const words = `${STAGES[row.stage] || row.state}: waited ${waited}${ran}${before}${row.ended ? `, ended ${clock(row.ended)}` : ''}`;
  return h('li', { title: words },
    h('span', { class: 'label' }, row.resource ? gangLink(row) : h('span', {}, row.name), h('span', { class: 'quiet' }, row.queue || row.namespace)),
    h('span', { class: 'track' }, h('span', { class: 'hidden' }, words),
      row.pieces.map(([name, left, width]) => h('span', { class: name, style: { left: `${left}%`, width: `max(2px, ${width}%)` } }))));
}

function ticks(from, now, hours) {
  const step = (hours > 12 ? 3 : hours > 2 ? 1 : 0.25) * 3600e3;
  const made = [];
  for (let at = Math.ceil(from / step) * step; at < now - 0.02 * (now - from); at += step) {
    made.push(h('span', { style: { left: `${(100 * (at - from)) / (now - from)}%` } }, clock(at)));
  }
  return made;
}

function showChips(chips, chosen) {
  const focused = document.activeElement?.dataset?.span;
  fill(chips, Object.entries(NAMES).map(([value, name]) => h('button', {
    type: 'button', class: 'chip', 'data-span': value, 'aria-pressed': String(chosen === value), onclick: () => setState({ span: value }),
  }, name)));
  if (focused !== undefined) chips.querySelector(`[data-span="${focused}"]`)?.focus();
}
