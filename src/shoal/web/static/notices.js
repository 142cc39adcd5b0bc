// What the visitor may not read is said once, above the view, in words that say what to do.

import { fill, h } from './dom.js';
import { count } from './format.js';
import { setState, state, store } from './store.js';

const GANGS = ['appwrappers.workload.codeflare.dev', 'rayjobs.ray.io', 'rayclusters.ray.io', 'jobs.batch'];

export function notice() {
  const place = h('div', { class: 'notices' });
  const update = () => {
    const all = store.notRead;
    if (!all.length) return fill(place);
    const where = state().namespace;
    if (!where && GANGS.every((one) => all.includes(one))) {
      const input = h('input', { id: 'pick', spellcheck: 'false', required: true });
      const form = h('form', { class: 'card pick' },
        h('p', {}, 'You may not list the gangs of all namespaces. Name one that is yours:'),
        h('label', { for: 'pick' }, 'Namespace'), input, h('button', {}, 'Show'));
      form.addEventListener('submit', (event) => {
        event.preventDefault();
        setState({ namespace: input.value.trim() });
        store.open(state().namespace || '');
      });
      return fill(place, form);
    }
    const list = h('details', { class: 'notice' },
      h('summary', {}, `${count(all.length, 'kind')} of objects that you may not list ${where ? `in ${where}` : 'here'}`),
      h('p', {}, all.join(', ')));
    return fill(place, list);
  };
  update();
  return { place, update };
}
