// The last day as bars: when each gang waited, when it ran, how it ended.

import { get } from './api.js';
import { Rows, fill, h, say } from './dom.js';
import { age, clock, span } from './format.js';
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
  let past = [];
  let now = Date.now();
  const rows = new Rows(body, (row) => bar(row));

  function update() {
    const { q, span: chosen = '' } = state();
    const hours = SPANS[chosen] || 24;
    now = Date.now();
    const from = now - hours * 3600e3;
    const gone = past.filter((one) => !store.rows.gangs.has(one.id));
    const found = [...store.list('gangs'), ...gone]
      .filter((row) => matches(row, q) && (!row.ended || Date.parse(row.ended) > from))
      .sort((a, b) => (a.created < b.created ? -1 : 1));
    showChips(chips, chosen);
    fill(axis, ticks(from, now, hours));
    rows.show(found.map((row) => placed(row, from, now)));
    say(none, found.length ? '' : store.loaded ? 'Nothing ran or waited in this time.' : 'Loading …');
    told.update();
  }

  async function look() {
    try {
      past = (await get('/data/history', { namespace: state().namespace || '' })).spans;
    } catch { return; }
    update();
  }
  const watching = watch(update);
  look();
  const again = setInterval(() => { update(); look(); }, AGAIN);
  return { unmount() { clearInterval(again); watching.unmount(); } };
}

// The same object while its bar would look the same.
const drawn = new Map();
function placed(row, from, now) {
  const at = (text) => Math.max(0, Math.min(100, (100 * (Date.parse(text) - from)) / (now - from)));
  const started = row.started ? at(row.started) : null;
  const ended = row.ended ? at(row.ended) : 100;
  const waits = [at(row.created), (started ?? ended) - at(row.created)];
  const runs = started === null ? null : [started, ended - started];
  const key = JSON.stringify([waits, runs].flat().map((n) => n && n.toFixed(1))) + row.stage + row.name;
  const old = drawn.get(row.id);
  if (old?.key === key) return old;
  const fresh = { ...row, key, waits, runs };
  drawn.set(row.id, fresh);
  return fresh;
}

function bar(row) {
  const until = row.ended ? Date.parse(row.ended) : Date.now();
  const waited = span(Math.max(0, Math.round(((row.started ? Date.parse(row.started) : until) - Date.parse(row.created)) / 1000)));
  const ran = row.started ? `, ran ${age(row.started, until)}` : '';
  const words = `${STAGES[row.stage] || row.stage}: waited ${waited}${ran}${row.ended ? `, ended ${clock(row.ended)}` : ''}`;
  const piece = (name, [left, width]) => h('span', { class: name, style: { left: `${left}%`, width: `max(2px, ${width}%)` } });
  return h('li', { title: words },
    h('span', { class: 'label' }, row.resource ? gangLink(row) : row.name, h('span', { class: 'quiet' }, row.queue || row.namespace)),
    h('span', { class: 'track' }, h('span', { class: 'hidden' }, words), row.waits[1] > 0 ? piece('waits', row.waits) : null, row.runs ? piece(row.stage, row.runs) : null));
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
