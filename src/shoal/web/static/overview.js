// How it stands: a few numbers, then every gang as one line.

import { Rows, fill, h, say } from './dom.js';
import { amount, unit } from './format.js';
import { STAGES, gangLink, since, stateBadge, turned } from './gangs.js';
import { notice } from './notices.js';
import { matches, setState, state, store } from './store.js';

const ORDER = { waiting: 0, starting: 1, running: 2, failed: 3, succeeded: 4 };

export function mount(main) {
  const told = notice();
  const tiles = h('ul', { class: 'tiles', 'aria-label': 'Numbers' });
  const chips = h('div', { class: 'chips', role: 'group', 'aria-label': 'Show gangs that are' });
  const body = h('tbody');
  const none = h('p', { class: 'quiet', role: 'status' });
  const table = h('table', { class: 'gangs' },
    h('caption', {}, 'Gangs'),
    h('thead', {}, h('tr', {}, ['Name', 'State', 'Since', 'Queue', 'Namespace', 'Kind', 'Reason'].map((one) => h('th', { scope: 'col' }, one)))),
    body);
  fill(main, h('h1', { class: 'hidden' }, 'Overview'), told.place, tiles, chips, h('div', { class: 'scroll' }, table), none);
  const rows = new Rows(body, gangRow);

  const update = () => {
    const { q, stage } = state();
    const all = store.list('gangs').filter((row) => matches(row, q));
    const found = all.filter((row) => !stage || row.stage === stage).sort(order);
    showTiles(tiles, all);
    showChips(chips, all, stage);
    rows.show(found);
    table.hidden = !found.length;
    say(none, found.length ? '' : store.loaded ? 'No gangs.' : 'Loading …');
    told.update();
  };
  return watch(update);
}

// Update once per frame, however many messages came.
export function watch(update) {
  let due = 0;
  const later = () => { if (!due) due = requestAnimationFrame(() => { due = 0; update(); performance.mark('shoal-updated'); }); };
  store.addEventListener('rows', later);
  store.addEventListener('state', later);
  update();
  return {
    unmount() {
      cancelAnimationFrame(due);
      store.removeEventListener('rows', later);
      store.removeEventListener('state', later);
    },
  };
}

function order(a, b) {
  return ORDER[a.stage] - ORDER[b.stage] || (turned(a) < turned(b) ? 1 : -1) || a.name.localeCompare(b.name);
}

function gangRow(row) {
  return h('tr', { 'data-id': row.id },
    h('th', { scope: 'row', 'data-label': 'Name' }, gangLink(row)),
    h('td', { 'data-label': 'State' }, stateBadge(row)),
    h('td', { 'data-label': 'Since', class: 'number' }, since(turned(row))),
    h('td', { 'data-label': 'Queue' }, row.queue || '–'),
    h('td', { 'data-label': 'Namespace' }, row.namespace),
    h('td', { 'data-label': 'Kind' }, row.kind),
    h('td', { 'data-label': 'Reason', class: 'reason', title: row.reason }, row.brief || row.reason || (row.cluster ? `in cluster ${row.cluster}` : '')));
}

function showTiles(tiles, all) {
  const found = Object.fromEntries(Object.keys(STAGES).map((one) => [one, all.filter((row) => row.stage === one).length]));
  const values = [
    ['Running', found.running, ''],
    ['Waiting', found.waiting, found.starting ? `${found.starting} starting` : ''],
    ['Failed', found.failed, ''],
    ...totals(),
  ];
  fill(tiles, values.map(([name, value, more, share]) => h('li', { class: 'card tile' },
    h('span', { class: 'what' }, name), h('span', { class: 'value' }, String(value)),
    share === undefined ? h('span', { class: 'more' }, more || '\u00a0') : meter(name, share, more))));
}

export function meter(name, share, text) {
  return h('span', { class: 'more' }, h('span', { class: 'meter', role: 'img', 'aria-label': `${name}: ${Math.round(share * 100)} % used` },
    h('span', { style: { width: `${Math.min(100, share * 100)}%` } })), text);
}

function totals() {
  const nodes = store.list('nodes');
  if (!nodes.length) return [];
  const ready = nodes.filter((row) => row.state === 'Ready').length;
  const sums = {};
  for (const node of nodes) {
    for (const [resource, { n }] of Object.entries(node.amounts)) {
      if (resource !== 'cpu' && resource !== 'memory' && !/\bgpu$/.test(resource)) continue;
      const sum = (sums[resource] ||= [0, 0]);
      sum[0] += n[0];
      sum[1] += n[1];
    }
  }
  const order = Object.keys(sums).sort((a, b) => /gpu/.test(b) - /gpu/.test(a) || a.localeCompare(b));
  return [
    ['Nodes', nodes.length, ready === nodes.length ? 'all ready' : `${nodes.length - ready} not ready`],
    ...order.filter((one) => sums[one][1]).map((one) => [
      unit(one), amount(one, sums[one][0]), `of ${amount(one, sums[one][1])}`, sums[one][0] / sums[one][1],
    ]),
  ];
}

function showChips(chips, all, chosen) {
  const focused = document.activeElement?.dataset?.stage;
  const made = [['', 'All', all.length], ...Object.entries(STAGES).map(([stage, name]) => [stage, name, all.filter((row) => row.stage === stage).length])];
  fill(chips, made.map(([stage, name, n]) => h('button', {
    type: 'button', class: `chip ${stage}`, 'data-stage': stage, 'aria-pressed': String((chosen || '') === stage),
    onclick: () => setState({ stage }),
  }, name, ' ', h('span', { class: 'n' }, String(n)))));
  if (focused !== undefined) chips.querySelector(`[data-stage="${focused}"]`)?.focus();
}
