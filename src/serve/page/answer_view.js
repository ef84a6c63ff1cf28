// One answer on the page: its text with tokens that can be pointed at, its error, and its numbers.
import {h, icon} from './dom.js';
import {MarkdownView, textNodes} from './markdown.js';

const FINISH = {length: 'reached the limit of tokens', stopped: 'stopped'};

export class AnswerView {
  // trace: or null. plain: a text to continue, not markdown. retry(): after an error.
  constructor(answer, {trace, plain, retry}) {
    this.answer = answer;
    this.trace = trace;
    this.plain = plain;
    this.retry = retry;
    this.running = false;
    this.marks = {hits: null, at: -1, differs: -1};
    this.body = h('div', {class: plain ? 'text plain' : 'text'});
    this.foot = h('div', {class: 'foot'});
    this.element = h('div', {class: 'answer', 'data-answer': answer.id}, this.body, this.foot);
    this.markdown = new MarkdownView(this.body);
    this.update();
  }

  setRunning(running) {
    if (running === this.running) return;
    this.running = running;
    this.update();
  }

  update() {
    const {answer} = this;
    const tokens = this.trace?.tokens;
    const paint = (span, t) => this.#paint(span, t);
    if (this.plain) this.body.replaceChildren(...textNodes(answer.text, 0, tokens, paint));
    else this.markdown.update(answer.text, tokens, paint);
    this.element.classList.toggle('running', this.running);
    this.element.setAttribute('aria-busy', String(this.running));
    this.#showFoot();
  }

  #showFoot() {
    const {answer} = this;
    const out = [];
    if (this.running && !answer.text)
      out.push(h('span', {class: 'waiting', role: 'img', 'aria-label': 'Waiting for the model'}, h('i'), h('i'), h('i')));
    if (!this.running && answer.error)
      out.push(h('div', {class: 'error', role: 'alert'}, icon('warn'), h('span', {class: 'why', title: answer.error}, answer.error),
        h('button', {type: 'button', onclick: () => this.retry()}, 'Retry')));
    if (!this.running && answer.stats && !answer.error) out.push(h('span', {class: 'stats'}, this.#stats()));
    this.foot.replaceChildren(...out);
  }
  #stats() {
    const {stats, finish, seed} = this.answer;
    const parts = [`${stats.tokens} token${stats.tokens === 1 ? '' : 's'}`];
    if (stats.seconds > 0 && stats.tokens > 1) parts.push(`${((stats.tokens - 1) / stats.seconds).toFixed(1)} per second`);
    if (stats.first > 0) parts.push(`first after ${stats.first.toFixed(2)} s`);
    parts.push(`seed ${seed}`);
    if (FINISH[finish]) parts.push(FINISH[finish]);
    return parts.join(' · ');
  }

  // hits: Map of tokens to weights, to be highlighted, or null; at: the token that is pointed at; differs: the first one that
  // differs from the answer beside it.
  mark(marks) {
    if (Object.entries(marks).every(([name, value]) => this.marks[name] === value)) return;
    this.marks = {...this.marks, ...marks};
    this.element.classList.toggle('picked', this.marks.hits?.size > 0);
    for (const span of this.body.querySelectorAll('.tok')) this.#paint(span, Number(span.dataset.t));
  }
  #paint(span, t) {
    const weight = this.marks.hits?.get(t);
    span.classList.toggle('hit', weight !== undefined);
    if (weight !== undefined) span.style.setProperty('--w', String(Math.min(1, 0.25 + 1.5 * weight)));
    span.classList.toggle('at', t === this.marks.at);
    span.classList.toggle('differs', t === this.marks.differs);
  }
}

// The first token in which two traced answers differ; -1: none.
export function firstDifference(a, b) {
  if (!a.trace || !b.trace) return -1;
  const text = (view, t) => view.answer.text.slice(view.trace.tokens[t].start, view.trace.tokens[t].end);
  const count = Math.min(a.trace.tokens.length, b.trace.tokens.length);
  for (let t = 0; t < count; t++) if (text(a, t) !== text(b, t)) return t;
  return a.trace.tokens.length === b.trace.tokens.length ? -1 : count;
}
