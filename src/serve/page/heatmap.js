// Layers by experts, as a canvas: thousands of cells that change with every token.
import {h} from './dom.js';

const LABEL = 26, BOTTOM = 16;  // room for the numbers

function channels(color) {
  const hex = color.trim().replace('#', '');
  return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
}
// A colour between three, for 0 to 1.
function mixed(scale, x) {
  const [a, b, t] = x < 0.5 ? [scale[0], scale[1], x * 2] : [scale[1], scale[2], x * 2 - 1];
  return `rgb(${a.map((v, i) => Math.round(v + (b[i] - v) * t)).join(' ')})`;
}

export class HeatMap {
  // moe: of /props. actions: hover({l, expert} or null), pin({l, expert}), toggle({l, expert}), step(1 or -1), say(text)
  constructor(moe, actions) {
    this.moe = moe;
    this.actions = actions;
    this.rows = moe.layers.length;
    this.cursor = {l: 0, expert: 0};  // of the keyboard
    this.canvas = h('canvas', {id: 'heat', tabindex: 0, role: 'application',
      'aria-label': 'Heat map of layers by experts. Arrow keys move, Enter holds an expert, X switches it off, brackets go from token to token.'});
    this.canvas.addEventListener('pointermove', (e) => e.pointerType === 'mouse' && actions.hover(this.#cellAt(e)));
    this.canvas.addEventListener('pointerleave', () => actions.hover(null));
    this.canvas.addEventListener('click', (e) => this.#act(e, actions.pin));
    this.canvas.addEventListener('dblclick', (e) => this.#act(e, actions.toggle));
    this.canvas.addEventListener('keydown', (e) => this.#key(e));
    this.canvas.addEventListener('blur', () => actions.hover(null));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.state = {counts: new Float64Array(this.rows * moe.experts), outlined: [], isOff: () => false, cell: null};
  }

  #act(event, action) {
    const cell = this.#cellAt(event);
    if (cell) action(cell);
  }
  #key(event) {
    const step = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]}[event.key];
    if (step) {
      this.cursor.l = Math.min(this.rows - 1, Math.max(0, this.cursor.l + step[0]));
      this.cursor.expert = Math.min(this.moe.experts - 1, Math.max(0, this.cursor.expert + step[1]));
      this.actions.hover({...this.cursor});
      const n = this.state.counts[this.cursor.l * this.moe.experts + this.cursor.expert];
      this.actions.say(`Layer ${this.moe.layers[this.cursor.l]}, expert ${this.cursor.expert}: ${n} tokens`);
    } else if (event.key === 'Enter') this.actions.pin({...this.cursor});
    else if (event.key === 'x' || event.key === 'Delete') this.actions.toggle({...this.cursor});
    else if (event.key === '[' || event.key === ']') this.actions.step(event.key === ']' ? 1 : -1);
    else return;
    event.preventDefault();
  }

  #size() {
    const width = this.canvas.clientWidth;
    const rowHeight = Math.max(7, Math.min(30, 300 / this.rows));
    return {width, rowHeight, cell: (width - LABEL) / this.moe.experts, height: rowHeight * this.rows + BOTTOM};
  }
  #cellAt(event) {
    const {rowHeight, cell} = this.#size();
    const l = Math.floor(event.offsetY / rowHeight), expert = Math.floor((event.offsetX - LABEL) / cell);
    return l >= 0 && l < this.rows && expert >= 0 && expert < this.moe.experts ? {l, expert} : null;
  }

  // state: {counts, outlined: cells of a token, isOff(l, expert), cell: pointed at, or null}
  show(state) {
    this.state = state;
    this.draw();
  }

  draw() {
    const {width, rowHeight, cell, height} = this.#size();
    if (width <= LABEL) return;  // the panel is closed
    const scale = window.devicePixelRatio || 1;
    this.canvas.style.height = height + 'px';
    const [w, hgt] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== w || this.canvas.height !== hgt) [this.canvas.width, this.canvas.height] = [w, hgt];
    const g = this.canvas.getContext('2d');
    g.setTransform(scale, 0, 0, scale, 0, 0);
    g.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.canvas);
    const color = (name) => style.getPropertyValue(name).trim();
    const heat = ['--heat-0', '--heat-1', '--heat-2'].map((name) => channels(color(name)));
    const {counts, outlined, isOff} = this.state;
    const most = counts.reduce((a, b) => Math.max(a, b), 0);
    const gap = cell > 4 ? 1 : 0.5;
    for (let l = 0; l < this.rows; l++) {
      for (let e = 0; e < this.moe.experts; e++) {
        const n = counts[l * this.moe.experts + e];
        g.fillStyle = mixed(heat, most > 0 ? Math.sqrt(n / most) : 0);  // the root shows the rare ones
        const [x, y] = [LABEL + e * cell, l * rowHeight];
        g.fillRect(x, y, cell - gap, rowHeight - gap);
        if (isOff(l, e)) this.#cross(g, x, y, cell - gap, rowHeight - gap, color('--off'));
      }
    }
    g.lineWidth = 1.5;
    for (const {l, expert} of outlined) this.#outline(g, l, expert, cell, rowHeight, gap, color('--mark'));
    if (this.state.cell) this.#outline(g, this.state.cell.l, this.state.cell.expert, cell, rowHeight, gap, color('--fg'));
    this.#labels(g, {width, rowHeight, cell, height}, color('--soft'));
  }
  #outline(g, l, expert, cell, rowHeight, gap, color) {
    g.strokeStyle = color;
    g.strokeRect(LABEL + expert * cell - 0.25, l * rowHeight - 0.25, cell - gap + 0.5, rowHeight - gap + 0.5);
  }
  #cross(g, x, y, w, hgt, color) {
    g.strokeStyle = color;
    g.lineWidth = 1.4;
    g.strokeRect(x + 0.5, y + 0.5, w - 1, hgt - 1);
    g.beginPath();
    g.moveTo(x, y);
    g.lineTo(x + w, y + hgt);
    g.moveTo(x + w, y);
    g.lineTo(x, y + hgt);
    g.stroke();
  }
  #labels(g, {rowHeight, cell, height}, color) {
    g.fillStyle = color;
    g.font = '10px system-ui, sans-serif';
    g.textAlign = 'right';
    g.textBaseline = 'middle';
    const every = Math.ceil(11 / rowHeight);
    for (let l = 0; l < this.rows; l += every) g.fillText(String(this.moe.layers[l]), LABEL - 6, (l + 0.5) * rowHeight);
    g.textAlign = 'center';
    const step = [1, 2, 4, 8, 16, 32, 64].find((n) => n * cell >= 22) ?? 128;
    for (let e = 0; e < this.moe.experts; e += step) g.fillText(String(e), LABEL + (e + 0.5) * cell, height - BOTTOM / 2);
  }
}
