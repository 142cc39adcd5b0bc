// Elements without a library: text only ever becomes text, and a row that has not changed is not touched.

export function h(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'class') made.className = value;
    else if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (name === 'style') for (const [key, one] of Object.entries(value)) made.style.setProperty(key, one);
    else if (name === 'href' && !isLink(value)) continue;
    else made.setAttribute(name, value === true ? '' : String(value));
  }
  made.append(...children.flat().filter((one) => one !== null && one !== undefined && one !== false && one !== ''));
  return made;
}

// A link leads to a place of the page or of the web; anything else, such as javascript:, stays text.
function isLink(value) {
  try { return ['http:', 'https:'].includes(new URL(value, location.href).protocol); } catch { return false; }
}

export function fill(element, ...children) {
  element.replaceChildren(...children.flat().filter((one) => one !== null && one !== undefined && one !== false));
}

// Set a text only where it differs: screen readers and selections are left alone.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// A list of rows by id. `make(row)` gives an element; it is made again when its row is another object.
export class Rows {
  constructor(parent, make) {
    this.parent = parent;
    this.make = make;
    this.known = new Map();
  }

  show(rows) {
    const kept = new Set();
    let at = this.parent.firstElementChild;
    for (const row of rows) {
      kept.add(row.id);
      const old = this.known.get(row.id);
      let element = old?.element;
      if (!old || old.row !== row) {
        const focused = old && old.element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
        element = this.make(row);
        if (old) {
          if (at === old.element) at = element;
          old.element.replaceWith(element);
          if (focused) element.querySelector(`[data-key="${focused}"]`)?.focus();
        }
        this.known.set(row.id, { row, element });
      }
      if (element === at) at = at.nextElementSibling;
      else this.parent.insertBefore(element, at);
    }
    for (const [id, { element }] of this.known) {
      if (!kept.has(id)) {
        element.remove();
        this.known.delete(id);
      }
    }
  }
}

export function badge(stage, text) {
  return h('span', { class: `badge ${stage}` }, text);
}
