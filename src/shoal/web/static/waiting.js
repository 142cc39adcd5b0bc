// What waits, by queue, in the order of the line. A place is asked of the controller when its row comes into view.

import { get } from './api.js';
import { Rows, fill, h, say } from './dom.js';
import { count } from './format.js';
import { gangLink, since, when } from './gangs.js';
import { notice } from './notices.js';
import { watch } from './overview.js';
import { matches, state, store } from './store.js';

const LOOK_AGAIN = 15000;

export function mount(main) {
  const told = notice();
  const places = new Map(); // by id: what the controller answered, and when
  const lists = h('div', { class: 'lists' });
  const none = h('p', { class: 'quiet', role: 'status' });
  fill(main, h('h1', {}, 'Waiting'), told.place, lists, none);
  const sections = new Map();
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) ask(entry.target.dataset.id);
  });

  async function ask(id) {
    const row = store.rows.gangs.get(id);
    const known = places.get(id);
    if (!row || row.position || row.stage !== 'waiting' || (known && Date.now() - known.at < LOOK_AGAIN)) return;
    places.set(id, { ...(known || {}), at: Date.now() });
    try {
      const answer = await get('/data/position', { kind: row.resource, namespace: row.namespace, name: row.name });
      places.set(id, { ...answer, at: Date.now() });
    } catch (error) { places.set(id, { notAnswered: error.message, at: Date.now() }); }
    update();
  }

  function update() {
    const { q } = state();
    const waiting = store.list('gangs').filter((row) => row.stage === 'waiting' && matches(row, q));
    const groups = new Map();
    for (const row of waiting) {
      const name = row.queue ? `${row.namespace}/${row.queue}` : '';
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(withPlace(row, places));
    }
    const names = [...groups.keys()].sort();
    for (const [name, section] of sections) {
      if (!groups.has(name)) { section.element.remove(); sections.delete(name); }
    }
    names.forEach((name, index) => {
      if (!sections.has(name)) sections.set(name, makeSection(name));
      const section = sections.get(name);
      const found = groups.get(name).sort((a, b) => (a.place || 1e9) - (b.place || 1e9) || (a.created < b.created ? -1 : 1));
      section.rows.show(found);
      say(section.count, count(found.length, 'gang'));
      say(section.others, others(name, found));
      if (lists.children[index] !== section.element) lists.insertBefore(section.element, lists.children[index] || null);
    });
    say(none, waiting.length ? '' : store.loaded ? 'Nothing waits.' : 'Loading …');
    told.update();
  }

  function makeSection(name) {
    const body = h('ol', { class: 'line' });
    const n = h('span', { class: 'n' });
    const more = h('p', { class: 'quiet others' });
    const title = name ? `Queue ${name}` : 'Without a queue';
    const element = h('section', { class: 'card', 'aria-label': title }, h('h2', {}, title, ' ', n), body, more);
    return { element, count: n, others: more, rows: new Rows(body, (row) => line(row, seen)) };
  }

  const watching = watch(update);
  const again = setInterval(() => { // those in view, now and then: the line moves
    for (const one of lists.querySelectorAll('li[data-id]')) {
      const box = one.getBoundingClientRect();
      if (box.bottom > 0 && box.top < innerHeight && document.visibilityState === 'visible') ask(one.dataset.id);
    }
  }, LOOK_AGAIN);
  return { unmount() { clearInterval(again); seen.disconnect(); watching.unmount(); } };
}

// The same object while nothing changed, so that the row is left alone.
const made = new WeakMap();
function withPlace(row, places) {
  const answer = places.get(row.id) || {};
  const place = row.position || answer.position || 0;
  const length = row.length || answer.queueLength || 0;
  const key = `${place}/${length}/${answer.localPosition}/${answer.message}/${answer.notAnswered}`;
  const old = made.get(row);
  if (old?.key === key) return old;
  const fresh = { ...row, key, place, length, answer };
  made.set(row, fresh);
  return fresh;
}

function line(row, seen) {
  const { answer } = row;
  const place = row.place ? String(row.place) : '·';
  const words = row.place ? `position ${row.place} of ${row.length}` : answer.notAnswered ? 'position not known' : 'asking for its position …';
  const own = answer.localPosition && answer.localQueueLength !== row.length ? `, ${answer.localPosition} of ${answer.localQueueLength} in this queue` : '';
  const element = h('li', { 'data-id': row.id },
    h('span', { class: 'place', 'aria-hidden': 'true' }, place),
    h('div', {},
      h('p', { class: 'first' }, gangLink(row), h('span', { class: 'quiet' }, ` ${row.kind} in ${row.namespace}, waits for `, since(row.created))),
      h('p', { class: 'reason' }, answer.message || row.brief || row.reason || 'no reason is stored yet'),
      h('p', { class: 'quiet small' }, `${words}${own}${row.priority ? `, priority ${row.priority}` : ''}${answer.estimate ? `. ${when(answer.estimate)}` : ''}`)));
  seen.observe(element);
  return element;
}

// How many gangs of the line the visitor may not read: a number, never a name.
function others(name, found) {
  const length = Math.max(0, ...found.map((row) => row.length));
  const [first] = found;
  const line = first?.answer?.clusterQueue;
  const known = line
    ? store.list('gangs').filter((row) => row.stage === 'waiting' && row.queue && clusterQueueOf(row) === line).length
    : store.list('gangs').filter((row) => row.stage === 'waiting' && !row.queue === !first.queue).length;
  const hidden = length - known;
  if (hidden <= 0) return '';
  const where = line ? ` of ClusterQueue ${line}` : '';
  return `${count(hidden, 'more gang')}${where} that you may not read, or do not look at, ${hidden === 1 ? 'waits' : 'wait'} in the same line.`;
}

function clusterQueueOf(row) {
  return store.rows.localQueues.get(`${row.namespace}/${row.queue}`)?.clusterQueue;
}
