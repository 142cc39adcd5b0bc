// What several views show of gangs: a row of the table, a state, how long.

import { badge, h } from './dom.js';
import { age, clock, span } from './format.js';
import { gangAddress } from './store.js';

export const STAGES = { running: 'Running', starting: 'Starting', waiting: 'Waiting', succeeded: 'Succeeded', failed: 'Failed' };

export function since(at) {
  return at ? h('time', { datetime: at, 'data-age': true, title: new Date(at).toLocaleString() }, age(at)) : '';
}

export function gangLink(row) {
  return h('a', { href: gangAddress(row), 'data-view': true, 'data-key': 'link' }, row.name);
}

export function stateBadge(row) {
  return badge(row.stage, row.state || STAGES[row.stage]);
}

// Since when it is in this stage, as far as it is stored.
export function turned(row) {
  if (row.ended) return row.ended;
  return row.stage === 'waiting' ? row.created : row.started || row.created;
}

// When it would start, as the controller estimates it, and what that is from.
export function when(estimate) {
  if (!estimate.at) return `When it starts is ${estimate.message || 'unknown'}`;
  const left = Math.max(0, Math.round((Date.parse(estimate.at) - Date.now()) / 1000));
  return `Starts from about ${clock(estimate.at)} (in ${span(left)})${estimate.message ? `, ${estimate.message}` : ''}`;
}
