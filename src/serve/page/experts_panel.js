// Beside the text: the heat map of an answer, what the user points at, and the experts that are switched off.
import {h, icon, iconButton, perFrame} from './dom.js';
import {HeatMap} from './heatmap.js';

const number = (value, digits = 2) => value.toFixed(digits).replace(/^0\./, '.');
const shown = (text) => text.replaceAll('\n', '⏎').replaceAll('\t', '⇥').replaceAll(' ', '\u00a0') || '∅';

export class ExpertsPanel {
  // focus: a Focus; overrides: an Overrides. actions: close(), changed() (the overrides), compare(), say(text)
  constructor(element, {moe, focus, overrides, actions}) {
    Object.assign(this, {element, moe, focus, overrides, actions});
    this.answer = null;
    this.trace = null;
    this.live = false;
    this.redraw = perFrame(() => this.#draw());
    this.heat = new HeatMap(moe, {
      hover: (cell) => focus.hover(cell),
      pin: (cell) => focus.pin(cell),
      toggle: ({l, expert}) => this.#toggle(l, expert),
      step: (by) => this.#step(by),
      say: actions.say,
    });
    this.withPrompt = h('input', {type: 'checkbox', id: 'with-prompt', onchange: this.redraw});
    this.summary = h('p', {class: 'note', id: 'heat-summary'});
    this.details = h('section', {id: 'details'});
    this.off = h('section', {id: 'off'});
    const shared = moe.shared_experts ? `, ${moe.shared_experts} shared` : '';
    const size = `${moe.layers.length} layers × ${moe.experts} experts, ${moe.experts_per_token} per token${shared}`;
    element.append(
      h('div', {class: 'side-head'}, h('h2', {}, 'Experts'), iconButton('close', 'Close the experts', actions.close)),
      h('p', {class: 'note'}, size),
      h('div', {class: 'heat-box'}, this.heat.canvas,
        h('div', {class: 'axis'}, h('span', {}, 'layers ↓ experts →'), h('label', {class: 'check'}, this.withPrompt, 'with the prompt'))),
      this.summary, this.details, this.off);
    this.#showOff();
    this.redraw();
  }

  // The answer whose experts are shown; trace: null when they are not known.
  show(answer, trace, live) {
    if (answer !== this.answer) this.token = undefined;
    Object.assign(this, {answer, trace, live});
    this.redraw();
  }

  // To the next token of the answer, for those without a pointer.
  #step(by) {
    if (!this.trace?.tokens.length) return;
    const last = this.trace.tokens.length - 1;
    this.token = Math.max(0, Math.min(last, (this.focus.get()?.token ?? this.token ?? -1) + by));
    this.focus.hover({answer: this.answer.id, token: this.token});
    const best = this.trace.rowOf(this.token)?.map((choice, l) => choice && `layer ${this.moe.layers[l]} expert ${choice.experts[0]}`);
    this.actions.say(`Token ${this.#pieceOf(this.token)}: ${best?.filter(Boolean).join(', ') ?? 'no experts'}`);
  }
  #toggle(l, expert) {
    this.overrides.toggle(this.moe.layers[l], expert);
    this.overridesChanged();
    this.actions.changed();
  }
  overridesChanged() {
    this.#showOff();
    this.redraw();
  }

  #draw() {
    const focus = this.focus.get();
    const {trace} = this;
    const counts = trace ? trace.counts(this.withPrompt.checked) : new Float64Array(this.moe.layers.length * this.moe.experts);
    const token = focus?.token ?? (this.live && !focus && trace ? trace.newest() : -1);
    const row = trace && token >= 0 ? trace.rowOf(token) : null;
    const outlined = (row ?? []).flatMap((choice, l) => (choice ? choice.experts.map((expert) => ({l, expert})) : []));
    const cell = focus?.l !== undefined ? focus : null;
    this.heat.show({counts, outlined, cell, isOff: (l, expert) => this.overrides.isOff(this.moe.layers[l], expert)});
    this.heat.canvas.dataset.tokens = String(this.#tokens());
    this.#showSummary(counts);
    if (cell) this.#showExpert(cell, counts);
    else if (focus?.token !== undefined) this.#showToken(focus.token);
    else this.#showHint();
  }

  #showSummary(counts) {
    if (!this.trace) {
      const unknown = 'The experts of this answer are not known: they are not kept when the page is closed.';
      this.summary.textContent = this.answer ? unknown : 'Fills as an answer comes.';
      return;
    }
    const tokens = this.#tokens();
    let best = 0;
    counts.forEach((n, i) => n > counts[best] && (best = i));
    const [layer, expert] = [this.moe.layers[Math.floor(best / this.moe.experts)], best % this.moe.experts];
    const share = `${Math.round((100 * counts[best]) / tokens)}% of tokens`;
    this.summary.textContent = `${tokens} tokens` + (tokens ? ` · busiest: layer ${layer} expert ${expert} (${share})` : '');
  }

  #showHint() {
    const words = 'Point at a word to see its experts, or at a cell to see its tokens. A click holds it.';
    this.details.replaceChildren(h('p', {class: 'hint'}, words));
  }

  // Those that the map counts.
  #tokens() {
    return this.trace ? this.trace.answered + (this.withPrompt.checked ? this.trace.prompted : 0) : 0;
  }

  #pieceOf(t) {
    const {start, end} = this.trace.tokens[t];
    return shown(this.answer.text.slice(start, end));
  }

  #showExpert({l, expert}, counts) {
    const layer = this.moe.layers[l], off = this.overrides.isOff(layer, expert), i = l * this.moe.experts + expert;
    const n = counts[i];
    const all = this.#tokens();
    const mean = n ? number(this.trace.weights(this.withPrompt.checked)[i] / n) : '';
    const facts = n ? `Chosen by ${n} of ${all} tokens (${Math.round((100 * n) / all)}%), with a mean weight of ${mean}` : 'Not chosen by any token';
    const tokens = this.trace ? [...this.trace.tokensOf(l, expert)].sort((a, b) => b[1] - a[1]).slice(0, 30) : [];
    this.details.replaceChildren(
      h('div', {class: 'details-head'}, h('h3', {}, `Layer ${layer} · expert ${expert}`),
        h('button', {type: 'button', class: off ? 'quiet' : 'quiet danger', id: 'toggle-expert', onclick: () => this.#toggle(l, expert)},
          off ? 'Switch on' : 'Switch off')),
      h('p', {class: 'note'}, facts),
      h('div', {class: 'pieces'}, tokens.map(([t, weight]) => h('span', {class: 'piece', title: `weight ${number(weight)}`}, this.#pieceOf(t)))));
  }

  #showToken(t) {
    if (!this.trace?.tokens[t]) return this.#showHint();
    const row = this.trace.rowOf(t);
    const head = h('div', {class: 'details-head'}, h('h3', {}, 'Token ', h('span', {class: 'piece'}, this.#pieceOf(t))),
      h('span', {class: 'note'}, `position ${this.trace.tokens[t].position}`));
    const none = h('p', {class: 'note'}, 'The last token of an answer is not run, so it has no experts.');
    if (!row) return this.details.replaceChildren(head, none);
    const lines = row.flatMap((choice, l) => {
      if (!choice) return [];
      const most = Math.max(...choice.weights, 1e-9);
      const chips = choice.experts.map((expert, k) => {
        const title = `layer ${this.moe.layers[l]}, expert ${expert}: weight ${choice.weights[k].toFixed(4)}`;
        const chip = h('button', {type: 'button', class: 'chip', title, onclick: () => this.focus.pin({l, expert})},
          h('b', {}, String(expert)), number(choice.weights[k]));
        chip.style.setProperty('--w', String(choice.weights[k] / most));
        return chip;
      });
      return [h('span', {class: 'layer'}, String(this.moe.layers[l])), h('span', {class: 'chips'}, chips)];
    });
    this.details.replaceChildren(head, h('div', {class: 'token-rows'},
      h('span', {class: 'layer'}, 'layer'), h('span', {class: 'note'}, 'experts and their weights, best first'), lines));
  }

  #showOff() {
    const o = this.overrides;
    const changed = () => (this.actions.changed(), this.redraw(), this.#showOff());
    const most = this.moe.experts;
    const count = (id, label, value, set) => h('label', {class: 'mini'}, label,
      h('input', {type: 'number', id, min: 0, max: most, step: 1, value, onchange: (e) => {
        set(Math.max(0, Math.min(most, Math.round(e.target.valueAsNumber) || 0)));
        changed();
      }}));
    const chips = o.off().map(([layer, expert]) => {
      const on = () => this.#toggle(this.moe.layers.indexOf(layer), expert);
      return h('button', {type: 'button', class: 'off-chip', title: 'Switch on', onclick: on}, `L${layer} E${expert}`, icon('close'));
    });
    const dropped = h('input', {type: 'checkbox', id: 'drop-shared', checked: o.dropShared, onchange: (e) => {
      o.dropShared = e.target.checked;
      changed();
    }});
    this.off.replaceChildren(
      h('div', {class: 'details-head'}, h('h3', {}, 'Switched off'),
        o.request() && h('button', {type: 'button', class: 'quiet', onclick: () => (o.clear(), changed())}, 'Clear')),
      chips.length ? h('div', {class: 'off-chips'}, chips) : h('p', {class: 'note'}, 'Double-click cells of the map, or use the button of an expert.'),
      h('div', {class: 'minis'},
        count('skip-best', "Mask each token's best", o.skipBest, (n) => (o.skipBest = n)),
        count('per-token', 'Experts per token (0: as trained)', o.perToken, (n) => (o.perToken = n)),
        this.moe.shared_experts > 0 && h('label', {class: 'check'}, dropped, 'Without shared experts')),
      h('button', {type: 'button', id: 'compare', class: 'primary wide', disabled: !o.request(), onclick: this.actions.compare},
        icon('columns'), 'Regenerate and compare'));
  }
}
