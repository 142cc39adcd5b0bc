// Every node as a tile, by pool: its GPUs as cells, cpu and memory as bars. The chosen one tells which gangs it holds.

import { Rows, fill, h, say } from './dom.js';
import { amount, count, unit } from './format.js';
import { notice } from './notices.js';
import { watch } from './overview.js';
import { setState, state, store } from './store.js';

const MOST_CELLS = 16;
const FILTERS = { '': 'All', free: 'With free GPUs', idle: 'Idle', trouble: 'Not ready' };

export function mount(main) {
  const told = notice();
  const chips = h('div', { class: 'chips', role: 'group', 'aria-label': 'Show nodes that are' });
  const legend = h('p', { class: 'legend quiet' },
    h('span', { class: 'cell used' }), ' GPU in use ', h('span', { class: 'cell' }), ' GPU free');
  const pools = h('div', { class: 'lists' });
  const detail = h('aside', { class: 'card detail', 'aria-live': 'polite', 'aria-label': 'The chosen node', hidden: true });
  const none = h('p', { class: 'quiet', role: 'status' });
  fill(main, h('h1', {}, 'Nodes'), told.place, chips, legend, detail, pools, none);
  const sections = new Map();

  function update() {
    const { q, nodes: filter, node: chosen } = state();
    const all = store.list('nodes').filter((row) => !q || row.name.includes(q) || row.gangs.some((one) => one.includes(q)));
    const found = all.filter((row) => passes(row, filter)).sort((a, b) => a.name.localeCompare(b.name, undefined, { numeric: true }));
    const groups = new Map();
    for (const row of found) {
      if (!groups.has(row.pool)) groups.set(row.pool, []);
      groups.get(row.pool).push(row);
    }
    showChips(chips, filter);
    legend.hidden = !found.some((row) => gpus(row)[1]);
    for (const [pool, section] of sections) {
      if (!groups.has(pool)) { section.element.remove(); sections.delete(pool); }
    }
    const withGpus = (pool) => groups.get(pool).some((row) => gpus(row)[1]);
    const order = [...groups.keys()].sort((a, b) => withGpus(b) - withGpus(a) || a.localeCompare(b));
    for (const [at, pool] of order.entries()) {
      if (!sections.has(pool)) sections.set(pool, section(pool));
      if (pools.children[at] !== sections.get(pool).element) pools.insertBefore(sections.get(pool).element, pools.children[at] || null);
      sections.get(pool).rows.show(groups.get(pool));
      say(sections.get(pool).count, count(groups.get(pool).length, 'node'));
    }
    for (const one of pools.querySelectorAll('button.node')) one.setAttribute('aria-pressed', String(one.dataset.id === chosen));
    showDetail(detail, store.rows.nodes.get(chosen));
    const refused = store.notRead.includes('nodes');
    say(none, found.length ? '' : refused ? 'You may not list nodes.' : store.loaded ? 'No nodes.' : 'Loading …');
    told.update();
  }
  return watch(update);
}

function section(pool) {
  const body = h('div', { class: 'map' });
  const n = h('span', { class: 'n' });
  const title = pool ? `Pool ${pool}` : 'Nodes';
  return { element: h('section', { 'aria-label': title }, h('h2', {}, title, ' ', n), body), count: n, rows: new Rows(body, tile) };
}

export function gpus(row) {
  let used = 0;
  let all = 0;
  for (const [resource, { n }] of Object.entries(row.amounts)) {
    if (/gpu$/.test(resource)) { used += n[0]; all += n[1]; }
  }
  return [used, all];
}

function passes(row, filter) {
  const [used, all] = gpus(row);
  if (filter === 'free') return used < all;
  if (filter === 'idle') return row.pods === 0;
  return filter === 'trouble' ? row.state !== 'Ready' : true;
}

function tile(row) {
  const [used, all] = gpus(row);
  const cells = all > MOST_CELLS || !all ? null : h('span', { class: 'cells', 'aria-hidden': 'true' },
    Array.from({ length: all }, (_, at) => h('span', { class: at < used ? 'cell used' : 'cell' })));
  const words = [row.name, row.state, all ? `${used} of ${all} GPUs in use` : '', count(row.pods, 'pod')].filter(Boolean).join(', ');
  return h('button', {
    type: 'button', class: `node ${row.state === 'Ready' ? '' : 'trouble'}`, 'data-id': row.id, 'data-key': 'node',
    'aria-label': words, 'aria-pressed': String(state().node === row.id), title: words,
    onclick: () => setState({ node: state().node === row.id ? '' : row.id }),
  },
  h('span', { class: 'name' }, row.name), cells || (all ? h('span', { class: 'small' }, `${used} of ${all} GPUs`) : null),
  bar(row, 'cpu'), bar(row, 'memory'));
}

function bar(row, resource) {
  const one = row.amounts[resource];
  if (!one || !one.n[1]) return null;
  return h('span', { class: `meter thin ${resource}` }, h('span', { style: { width: `${Math.min(100, (100 * one.n[0]) / one.n[1])}%` } }));
}

function showDetail(detail, row) {
  detail.hidden = !row;
  if (!row) return fill(detail);
  fill(detail,
    h('h2', {}, row.name, ' ', h('span', { class: `badge ${row.state === 'Ready' ? 'running' : 'failed'}` }, row.state)),
    h('table', {}, h('caption', { class: 'hidden' }, 'What its pods request'),
      h('thead', {}, h('tr', {}, ['Resource', 'Requested', 'Offered'].map((one) => h('th', { scope: 'col' }, one)))),
      h('tbody', {}, Object.entries(row.amounts).map(([resource, { n }]) => h('tr', {},
        h('th', { scope: 'row' }, unit(resource)), h('td', { class: 'number' }, amount(resource, n[0])), h('td', { class: 'number' }, amount(resource, n[1])))))),
    h('p', {}, row.gangs.length ? `${count(row.pods, 'pod')} of ${row.gangs.join(', ')}${row.moreGangs ? ` and ${row.moreGangs} more` : ''}` : 'No pods that you may read.'),
    store.notRead.includes('pods') ? h('p', { class: 'quiet' }, 'Pods of namespaces that you may not read are not counted.') : null,
    h('button', { type: 'button', onclick: () => setState({ node: '' }) }, 'Close'));
}

function showChips(chips, chosen) {
  const focused = document.activeElement?.dataset?.nodes;
  fill(chips, Object.entries(FILTERS).map(([value, name]) => h('button', {
    type: 'button', class: 'chip', 'data-nodes': value, 'aria-pressed': String((chosen || '') === value), onclick: () => setState({ nodes: value }),
  }, name)));
  if (focused !== undefined) chips.querySelector(`[data-nodes="${focused}"]`)?.focus();
}
