// Where the user writes: Enter sends, Shift+Enter is a new line; one button sends and stops.
import {h, icon} from './dom.js';

export class Composer {
  // actions: send(text), stop(), clearOverrides()
  constructor(element, actions) {
    this.actions = actions;
    this.running = false;
    this.input = h('textarea', {id: 'input', rows: 1, 'aria-label': 'Message', enterkeyhint: 'send'});
    this.button = h('button', {type: 'button', id: 'send', class: 'round primary', onclick: () => this.#act()});
    this.off = h('div', {id: 'off-note', hidden: true});
    this.hint = h('p', {class: 'note', id: 'composer-hint'});
    element.append(this.off, h('div', {class: 'box'}, this.input, this.button), this.hint);
    this.input.addEventListener('input', () => this.#fit());
    this.input.addEventListener('keydown', (event) => {
      // Enter that ends a composition (Chinese, Japanese) chooses characters, and sends nothing.
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.running) this.#act();
    });
    this.setRunning(false);
  }

  #act() {
    if (this.running) return this.actions.stop();
    const text = this.input.value;
    if (!this.actions.send(text)) return;
    this.input.value = '';
    this.#fit();
  }
  #fit() {
    this.input.style.height = 'auto';
    this.input.style.height = Math.min(this.input.scrollHeight, 220) + 'px';
  }

  setRunning(running) {
    this.running = running;
    this.button.replaceChildren(icon(running ? 'stop' : 'send'));
    const label = running ? 'Stop (Esc)' : 'Send (Enter)';
    this.button.title = label;
    this.button.setAttribute('aria-label', label);
    this.button.classList.toggle('stop', running);
  }
  setMode(text, model) {
    this.input.placeholder = text ? 'Begin a text, and the model continues it' : `Message ${model || 'the model'}`;
    this.hint.textContent = text ? 'The model continues your text. Send nothing to let it go on.' : '';
    this.hint.hidden = !text;
  }
  setOverrides(text) {
    this.off.hidden = !text;
    this.off.replaceChildren(icon('grid'), h('span', {}, text), h('button', {type: 'button', onclick: this.actions.clearOverrides}, 'Clear'));
  }
  focus() {
    this.input.focus();
  }
}
