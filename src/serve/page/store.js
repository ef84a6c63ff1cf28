// Conversations and settings, kept in this browser (localStorage): one entry per conversation, and a list of them.
//
// A conversation: {id, title, named, created, updated, system, messages}. A message of the user: {role: 'user', text}. One of
// the model: {role: 'assistant', answers, shown, beside}: every answer that was generated, the one that counts, and another
// one shown beside it (or null). An answer: {id, text, seed, overrides, finish, error, stats}.
//
// Experts of tokens are not kept: a few answers of a large model would fill what a browser allows.

const LIST = 'dsmoe.conversations';
const ENTRY = 'dsmoe.conversation.';
const SETTINGS = 'dsmoe.settings';

export const newId = () => Array.from(crypto.getRandomValues(new Uint32Array(3)), (n) => n.toString(36)).join('');

function parsed(text, otherwise) {
  try {
    return JSON.parse(text) ?? otherwise;
  } catch {
    return otherwise;
  }
}

// What was stored may be of another version, or edited by hand: only what the page can show gets through.
function checked(c) {
  if (typeof c !== 'object' || c === null || typeof c.id !== 'string' || !Array.isArray(c.messages)) return null;
  const text = (value) => (typeof value === 'string' ? value : '');
  const messages = [];
  for (const m of c.messages) {
    if (m?.role === 'user') messages.push({role: 'user', text: text(m.text)});
    if (m?.role !== 'assistant' || !Array.isArray(m.answers) || !m.answers.length) continue;
    const answers = m.answers.map((a) => ({...a, id: text(a?.id) || newId(), text: text(a?.text)}));
    const index = (i) => Number.isInteger(i) && i >= 0 && i < answers.length;
    messages.push({role: 'assistant', answers, shown: index(m.shown) ? m.shown : answers.length - 1, beside: index(m.beside) ? m.beside : null});
  }
  return {...c, title: text(c.title), system: text(c.system), messages};
}

export class Store {
  #held = new Map();  // what localStorage did not take
  #seen = new Map();  // by id: `updated` of the conversation as this page knows it

  // onFull(error): something could not be kept.
  constructor(onFull) {
    this.onFull = onFull;
  }
  #get(key) {
    if (this.#held.has(key)) return this.#held.get(key);  // newer than what is kept
    try {
      return localStorage.getItem(key);
    } catch {
      return null;
    }
  }
  #set(key, value) {
    const text = JSON.stringify(value);
    try {
      localStorage.setItem(key, text);
      this.#held.delete(key);
    } catch (error) {  // full, or not allowed: it lasts until the page is closed
      this.#held.set(key, text);
      this.onFull(error);
    }
  }

  list() {
    const all = parsed(this.#get(LIST), []);
    return (Array.isArray(all) ? all : []).filter((c) => typeof c?.id === 'string').sort((a, b) => b.updated - a.updated);
  }
  load(id) {
    const conversation = checked(parsed(this.#get(ENTRY + id), null));
    if (conversation) this.#seen.set(id, conversation.updated);
    return conversation;
  }
  // A conversation that another tab has changed since is not overwritten: this one becomes a conversation of its own.
  save(conversation) {
    const kept = this.list().find((c) => c.id === conversation.id);
    if (kept && kept.updated > (this.#seen.get(conversation.id) ?? Infinity)) {
      conversation.id = newId();
      conversation.title += ' (2)';
    }
    const {id, title, updated} = conversation;
    this.#seen.set(id, updated);
    this.#set(ENTRY + id, conversation);
    this.#set(LIST, [{id, title, updated}, ...this.list().filter((c) => c.id !== id)]);
  }
  remove(id) {
    this.#set(LIST, this.list().filter((c) => c.id !== id));
    this.#held.delete(ENTRY + id);
    try {
      localStorage.removeItem(ENTRY + id);
    } catch { /* it was never there */ }
  }
  settings() {
    const value = parsed(this.#get(SETTINGS), {});
    return typeof value === 'object' && !Array.isArray(value) ? value : {};
  }
  saveSettings(settings) {
    this.#set(SETTINGS, settings);
  }
  // Another tab changed the list.
  onChange(call) {
    addEventListener('storage', (event) => {
      if (event.key === null || event.key === LIST) call();
    });
  }
}

export function newConversation() {
  const now = Date.now();
  return {id: newId(), title: '', named: false, created: now, updated: now, system: '', messages: []};
}

export function titleFrom(text) {
  const line = text.trim().split('\n')[0].trim();
  return line.length > 60 ? line.slice(0, 59).trimEnd() + '…' : line;
}

// A file in the folder for downloads.
export function download(name, value) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2) + '\n'], {type: 'application/json'}));
  const link = document.createElement('a');
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
