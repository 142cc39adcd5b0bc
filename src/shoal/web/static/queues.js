// The tree of cohorts with the queues below them: what each is guaranteed, uses, borrows and lends.

import { fill, h, say } from './dom.js';
import { amount, count, unit } from './format.js';
import { notice } from './notices.js';
import { watch } from './overview.js';
import { address, state, store } from './store.js';

export function mount(main) {
  const told = notice();
  const tree = h('div', { class: 'lists' });
  const locals = h('section');
  const none = h('p', { class: 'quiet', role: 'status' });
  const legend = h('p', { class: 'legend quiet' },
    h('span', { class: 'swatch own' }), ' used of the guarantee ', h('span', { class: 'swatch borrowed' }), ' borrowed ',
    h('span', { class: 'swatch lent' }), ' lent ', h('span', { class: 'swatch' }), ' guaranteed, unused');
  fill(main, h('h1', {}, 'Queues'), told.place, legend, tree, locals, none);
  let last = '';

  function update() {
    const { q } = state();
    const queues = store.list('clusterQueues').filter((row) => !q || `${row.name} ${row.cohort}`.includes(q));
    const cohorts = store.rows.cohorts;
    const local = store.list('localQueues').filter((row) => !q || `${row.name} ${row.namespace} ${row.clusterQueue}`.includes(q));
    const text = JSON.stringify([queues, [...cohorts.values()], local]);
    legend.hidden = !queues.length;
    if (text !== last) {
      last = text;
      fill(tree, roots(queues, cohorts));
      fill(locals, localQueues(local));
    }
    const refused = store.notRead.some((one) => one.startsWith('clusterqueues'));
    say(none, queues.length ? '' : refused ? 'You may not list ClusterQueues; the LocalQueues above are what you may read.' : store.loaded ? 'No ClusterQueues.' : 'Loading …');
    told.update();
  }
  return watch(update);
}

function roots(queues, cohorts) {
  const children = new Map();
  const names = new Set([...cohorts.keys(), ...queues.map((row) => row.cohort).filter(Boolean)]);
  for (const name of names) {
    const parent = cohorts.get(name)?.parent || '';
    if (parent) names.add(parent);
  }
  for (const name of names) {
    const parent = cohorts.get(name)?.parent || '';
    if (!children.has(parent)) children.set(parent, []);
    children.get(parent).push(name);
  }
  const drawn = new Set(); // a ring of cohorts is drawn once
  const draw = (name) => {
    if (drawn.has(name)) return null;
    drawn.add(name);
    const members = queues.filter((row) => row.cohort === name).sort(byName);
    const own = (cohorts.get(name)?.quotas || []).map((one) => `${one.guaranteed} ${unit(one.resource)} of ${one.flavor}`);
    return h('section', { class: 'cohort', 'aria-label': `Cohort ${name}` },
      h('h2', {}, `Cohort ${name} `, h('span', { class: 'n' }, count(members.length, 'queue'))),
      own.length ? h('p', { class: 'quiet' }, `Quota of its own: ${own.join(', ')}`) : null,
      members.map(card), (children.get(name) || []).sort().map(draw));
  };
  const alone = queues.filter((row) => !row.cohort).sort(byName).map(card);
  const top = (children.get('') || []).sort().map(draw);
  return [...top, ...[...names].sort().map(draw), ...alone];
}

function byName(a, b) {
  return a.name.localeCompare(b.name);
}

function card(row) {
  return h('article', { class: 'card queue', 'aria-label': `ClusterQueue ${row.name}` },
    h('h3', {}, row.name, row.state === 'Active' ? null : h('span', { class: 'badge failed' }, row.state)),
    h('p', { class: 'quiet' }, `${row.admitted} admitted, ${row.pending} waiting${row.weight ? `, fair share weight ${row.weight}` : ''}`),
    h('dl', { class: 'quotas' }, row.quotas.map(quota)));
}

function quota(one) {
  const [guaranteed, used, borrowed, lent, most] = one.n;
  const whole = Math.max(guaranteed, used, 1);
  const own = used - borrowed;
  const show = (n) => amount(one.resource, n);
  const lending = most ? `, ${lent === most ? '' : lent ? `${show(lent)} to ` : 'up to '}${show(most)} lent` : '';
  const limits = [one.borrowingLimit ? `borrows at most ${one.borrowingLimit}` : '', one.lendingLimit ? `lends at most ${one.lendingLimit}` : ''].filter(Boolean);
  const words = `${show(used)} of ${show(guaranteed)}${borrowed ? `, ${show(borrowed)} borrowed` : ''}${lending}`;
  const part = (name, n) => (n > 0 ? h('span', { class: name, style: { width: `${(100 * n) / whole}%` } }) : null);
  return h('div', {},
    h('dt', {}, unit(one.resource), h('span', { class: 'quiet' }, ` ${one.flavor}`)),
    h('dd', {}, h('span', { class: 'quota', 'aria-hidden': 'true' },
      h('span', { class: 'guarantee', style: { width: `${(100 * guaranteed) / whole}%` } }),
      h('span', { class: 'parts' }, part('own', own), part('borrowed', borrowed), part('lent', lent), part('lent perhaps', most - lent))),
    h('span', { class: 'words' }, words, limits.length ? h('span', { class: 'quiet' }, ` (${limits.join(', ')})`) : null)));
}

function localQueues(rows) {
  if (!rows.length) return [];
  return [h('h2', {}, 'LocalQueues ', h('span', { class: 'n' }, String(rows.length))), h('div', { class: 'scroll' }, h('table', { class: 'gangs' },
    h('caption', { class: 'hidden' }, 'LocalQueues'),
    h('thead', {}, h('tr', {}, ['Name', 'Namespace', 'ClusterQueue', 'Admitted', 'Waiting', 'State'].map((one) => h('th', { scope: 'col' }, one)))),
    h('tbody', {}, rows.sort((a, b) => a.id.localeCompare(b.id)).map((row) => h('tr', {},
      h('th', { scope: 'row', 'data-label': 'Name' }, h('a', { href: address('/waiting', { namespace: row.namespace }), 'data-view': true }, row.name)),
      h('td', { 'data-label': 'Namespace' }, row.namespace), h('td', { 'data-label': 'ClusterQueue' }, row.clusterQueue),
      h('td', { 'data-label': 'Admitted', class: 'number' }, String(row.admitted)), h('td', { 'data-label': 'Waiting', class: 'number' }, String(row.pending)),
      h('td', { 'data-label': 'State' }, row.state))))))];
}
