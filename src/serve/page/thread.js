// The messages of a conversation, and what can be done with each.
import {AnswerView, firstDifference} from './answer_view.js';
import {copyButton, h, iconButton} from './dom.js';
import {described} from './overrides.js';

export class Thread {
  // actions: edit(i, text), again(i), show(i, answer), beside(i, answer or null), suggest(text)
  constructor(element, scroll, toEnd, actions) {
    this.element = element;
    this.scroll = scroll;
    this.actions = actions;
    this.views = new Map();  // by id of the answer
    this.pairs = [];         // views side by side
    this.toEnd = toEnd;
    this.follows = true;  // the end of the text
    scroll.addEventListener('scroll', () => this.#watch());
    toEnd.addEventListener('click', () => this.goToEnd(true));
  }

  #watch() {
    this.follows = this.scroll.scrollHeight - this.scroll.scrollTop - this.scroll.clientHeight < 60;
    this.toEnd.hidden = this.follows;
  }
  goToEnd(force = false) {
    if (force) this.follows = true;
    if (this.follows) this.scroll.scrollTop = this.scroll.scrollHeight;
    this.#watch();
  }

  // traces: by id of the answer; plain: text mode; running: ids of answers that are being written
  show({conversation, traces, plain, running, model}) {
    this.traces = traces;
    this.plain = plain;
    this.element.classList.toggle('text-mode', plain);
    const old = this.views;
    this.views = new Map();
    this.pairs = [];
    const view = (answer, i) => {
      const kept = old.get(answer.id);
      const usable = kept && kept.plain === plain && kept.answer === answer && kept.trace === (traces.get(answer.id) ?? null);
      const out = usable ? kept : new AnswerView(answer, {trace: traces.get(answer.id) ?? null, plain, retry: () => this.actions.again(i)});
      out.retry = () => this.actions.again(i);
      out.setRunning(running.has(answer.id));
      this.views.set(answer.id, out);
      return out;
    };
    const out = conversation.messages.map((m, i) => (m.role === 'user' ? this.#user(m, i) : this.#assistant(m, i, view, running)));
    this.element.replaceChildren(...(out.length ? out : [this.#welcome(model)]));
    this.compare();
    this.goToEnd();
  }

  #welcome(model) {
    const ideas = this.plain ? ['Once upon a time', 'The three most important ideas of ']
      : ['Tell me a story about a blue bird', 'What is a mixture of experts?', 'Write a function that reverses a string'];
    return h('div', {class: 'welcome'},
      h('img', {src: '/page/icon.svg', alt: '', width: 52, height: 52}), h('h2', {}, model || 'dsmoe'),
      h('p', {class: 'soft'}, this.plain ? 'Begin a text and watch which experts continue it.' : 'Ask something, and watch which experts answer.'),
      h('div', {class: 'ideas'}, ideas.map((text) => h('button', {type: 'button', onclick: () => this.actions.suggest(text)}, text))));
  }

  #user(message, i) {
    const element = h('article', {class: 'message user', 'aria-label': this.plain ? 'Text' : 'You'},
      h('div', {class: 'bubble'}, message.text),
      h('div', {class: 'tools'}, copyButton(() => message.text), iconButton('edit', 'Edit and send again', () => this.#edit(element, message, i))));
    return element;
  }
  #edit(element, message, i) {
    const area = h('textarea', {value: message.text, rows: Math.min(12, message.text.split('\n').length + 1), 'aria-label': 'Edit the message'});
    const close = () => element.replaceWith(this.#user(message, i));
    const send = () => this.actions.edit(i, area.value);
    area.addEventListener('keydown', (event) => {
      if (event.key === 'Escape') event.stopPropagation(), close();
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    });
    element.replaceChildren(h('div', {class: 'editor'}, area, h('div', {class: 'buttons'},
      h('button', {type: 'button', onclick: close}, 'Cancel'), h('button', {type: 'button', class: 'primary', onclick: send}, 'Send'))));
    area.focus();
  }

  #assistant(message, i, view, running) {
    const shown = message.answers[message.shown];
    const busy = running.has(shown.id);
    const pair = message.beside !== null && message.beside !== message.shown;
    const tools = [copyButton(() => shown.text), iconButton('again', 'Regenerate', () => this.actions.again(i), {disabled: running.size > 0})];
    if (message.answers.length > 1) {
      const to = (step) => () => this.actions.show(i, message.shown + step);
      tools.push(h('span', {class: 'pager'}, iconButton('left', 'Previous answer', to(-1), {disabled: message.shown === 0 || busy}),
        h('span', {}, `${message.shown + 1} / ${message.answers.length}`),
        iconButton('right', 'Next answer', to(1), {disabled: message.shown === message.answers.length - 1 || busy})));
      const other = message.shown > 0 ? message.shown - 1 : 1;
      tools.push(iconButton('columns', pair ? 'Show one answer' : 'Show two answers side by side',
        () => this.actions.beside(i, pair ? null : other), {'aria-pressed': String(pair)}));
    }
    const answers = pair ? this.#versus(message, i, view) : [this.#labelled(shown, view(shown, i))];
    return h('article', {class: 'message assistant' + (pair ? ' versus' : ''), 'aria-label': 'Answer'},
      h('div', {class: 'answers'}, answers), h('div', {class: 'tools'}, tools));
  }
  #labelled(answer, view) {
    return answer.overrides ? h('div', {}, h('div', {class: 'label'}, h('span', {class: 'badge'}, described(answer.overrides))), view.element) : view.element;
  }
  #versus(message, i, view) {
    const views = [message.beside, message.shown].map((n) => ({n, answer: message.answers[n], view: view(message.answers[n], i)}));
    this.pairs.push(views.map((v) => v.view));
    return views.map(({n, answer, view: v}) => h('section', {class: 'column'},
      h('div', {class: 'label'}, h('span', {class: answer.overrides ? 'badge' : 'badge calm'}, described(answer.overrides)),
        h('button', {type: 'button', class: 'quiet', onclick: () => this.actions.keep(i, n)}, 'Keep')), v.element));
  }

  // Marks where answers side by side part.
  compare() {
    for (const view of this.views.values()) {
      const pair = this.pairs.find((p) => p.includes(view));
      view.mark({differs: pair ? firstDifference(...pair) : -1});
    }
  }

  update(answer) {
    this.views.get(answer.id)?.update();
    this.compare();
    this.goToEnd();
  }

  // What the user points at, in every answer whose experts are known.
  mark(focus) {
    for (const [id, view] of this.views) {
      if (!view.trace) continue;
      const hits = focus && focus.l !== undefined ? view.trace.tokensOf(focus.l, focus.expert) : null;
      view.mark({hits, at: focus && focus.answer === id ? focus.token : -1});
    }
  }
}
