// What the page knows: rows by topic, kept up to date by one stream while the tab is visible, and the state in the URL.

import { LoggedOut, follow } from './api.js';

export const TOPICS = ['gangs', 'nodes', 'clusterQueues', 'localQueues', 'cohorts'];
const HIDDEN_FOR = 15000;

class Store extends EventTarget {
  constructor() {
    super();
    this.rows = Object.fromEntries(TOPICS.map((topic) => [topic, new Map()]));
    this.notRead = [];
    this.loaded = false;
    this.namespace = null;
    this.stream = null;
    this.hiding = null;
    document.addEventListener('visibilitychange', () => this.seen());
  }

  list(topic) {
    return [...this.rows[topic].values()];
  }

  // Follow one namespace, or all with ''.
  open(namespace) {
    if (this.stream && this.namespace === namespace) return;
    this.close();
    if (this.namespace !== namespace) this.loaded = false;
    this.namespace = namespace;
    this.stream = new AbortController();
    this.run(namespace, this.stream.signal);
  }

  close() {
    this.stream?.abort();
    this.stream = null;
  }

  // A tab that is not looked at gives its connection back.
  seen() {
    clearTimeout(this.hiding);
    if (this.namespace === null) return;
    if (document.visibilityState === 'visible') this.open(this.namespace);
    else this.hiding = setTimeout(() => this.close(), HIDDEN_FOR);
  }

  async run(namespace, signal) {
    let pause = 500;
    while (!signal.aborted) {
      try {
        await follow('/data/live', { namespace }, (told) => { pause = 500; this.take(told); }, signal);
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof LoggedOut) return this.tell('loggedout');
      }
      if (signal.aborted) return;
      this.tell('link', 'reconnecting …');
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(pause * 2, 15000);
    }
  }

  take(told) {
    const changed = new Set();
    if (told.rows) {
      for (const topic of TOPICS) {
        const fresh = new Map(told.rows[topic].map((row) => [row.id, row]));
        this.rows[topic] = fresh;
        changed.add(topic);
      }
      this.loaded = true;
      performance.mark('shoal-rows');
    }
    for (const [topic, { put, drop }] of Object.entries(told.changes || {})) {
      for (const row of put) this.rows[topic].set(row.id, row);
      for (const id of drop) this.rows[topic].delete(id);
      changed.add(topic);
    }
    if (String(told.notRead) !== String(this.notRead)) {
      this.notRead = told.notRead;
      changed.add('notRead');
    }
    this.tell('link', 'live');
    if (changed.size) this.tell('rows', changed);
  }

  tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

export const store = new Store();

// --- the state in the URL

export function state() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

// Change some of it; empty values leave the URL. A filter replaces the entry, so that Back leads out of the view.
export function setState(changes) {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  history.replaceState(null, '', location.pathname + (text ? `?${text}` : ''));
  store.tell('state');
}

// The address of a view, with the filters that all views share.
export function address(path, more = {}) {
  const query = new URLSearchParams(more);
  const { namespace } = state();
  if (namespace && !query.has('namespace')) query.set('namespace', namespace);
  const text = query.toString();
  return path + (text ? `?${text}` : '');
}

// A gang's page; `in` keeps the namespace that is looked at, where `namespace` is the gang's own.
export function gangAddress(row) {
  const { namespace } = state();
  const where = location.pathname === '/gang' ? state().in : namespace;
  const query = { kind: row.resource, namespace: row.namespace, name: row.name };
  return `/gang?${new URLSearchParams(where ? { ...query, in: where } : query)}`;
}

export function matches(row, words) {
  if (!words) return true;
  const text = [row.name, row.namespace, row.queue, row.kind, row.state, row.reason, row.cluster].join(' ').toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
