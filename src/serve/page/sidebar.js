// The list of conversations: open, rename, export, delete.
import {h, icon, iconButton} from './dom.js';

function age(time) {
  const days = Math.floor((new Date().setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 86_400_000);
  return days <= 0 ? 'Today' : days === 1 ? 'Yesterday' : days < 7 ? 'This week' : days < 31 ? 'This month' : 'Earlier';
}

export class Sidebar {
  // actions: open(id), create(), rename(id, title), remove(id), save(id), saveAll()
  constructor(element, actions) {
    this.actions = actions;
    this.list = h('div', {id: 'conversations'});
    element.append(
      h('div', {class: 'side-head'}, h('img', {src: '/page/icon.svg', alt: '', width: 24, height: 24}), h('h1', {}, 'dsmoe'),
        iconButton('close', 'Close the list', actions.close, {class: 'icon-button narrow-only'})),
      h('button', {type: 'button', id: 'new', class: 'wide', onclick: actions.create}, icon('plus'), 'New conversation'),
      this.list,
      h('button', {type: 'button', class: 'quiet', onclick: actions.saveAll}, icon('save'), 'Export all'));
  }

  show(list, current) {
    const out = [];
    let group = '';
    for (const c of list) {
      const next = age(c.updated);
      if (next !== group) out.push(h('h2', {}, next));
      group = next;
      out.push(this.#entry(c, c.id === current));
    }
    if (!list.length) out.push(h('p', {class: 'note'}, 'Conversations stay in this browser.'));
    this.list.replaceChildren(...out);
  }

  #entry(c, current) {
    const title = c.title || 'New conversation';
    const name = h('button', {type: 'button', class: 'name', title, 'aria-current': current ? 'page' : null, onclick: () => this.actions.open(c.id)}, title);
    const entry = h('div', {class: 'entry' + (current ? ' current' : ''), 'data-id': c.id}, name, h('div', {class: 'tools'},
      iconButton('edit', 'Rename', () => this.#rename(entry, c)),
      iconButton('save', 'Export as JSON', () => this.actions.save(c.id)),
      iconButton('trash', 'Delete', () => this.actions.remove(c.id))));
    return entry;
  }

  #rename(entry, c) {
    const input = h('input', {type: 'text', value: c.title, 'aria-label': 'Title', maxlength: 200});
    let done = false;
    const end = (keep) => {
      if (done) return;
      done = true;
      this.actions.rename(c.id, keep ? input.value.trim() : c.title);
    };
    input.addEventListener('keydown', (event) => {
      if (event.key === 'Enter') end(true);
      if (event.key === 'Escape') end(false);
      event.stopPropagation();
    });
    input.addEventListener('blur', () => end(true));
    entry.replaceChildren(input);
    input.focus();
    input.select();
  }
}
