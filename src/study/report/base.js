'use strict';
// What the reports share: elements from data (always as text, never as markup), colours, tables that sort, heat maps, the tip.
const data = JSON.parse(document.getElementById('data').textContent);

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'style') Object.assign(node.style, value);
    else if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined));
  return node;
}
const byId = (id) => document.getElementById(id);
const fixed = (value, digits) => Number.isFinite(value) ? value.toFixed(digits) : '–';
const percent = (value, digits = 0) => fixed(100 * value, digits) + ' %';
const grouped = (value) => String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, ',');
function short(value) {
  for (const [size, unit] of [[1e12, ' T'], [1e9, ' B'], [1e6, ' M'], [1e4, ' k']])
    if (value >= size) return (value / (size === 1e4 ? 1e3 : size)).toPrecision(3) + unit;
  return grouped(value);
}
// Exact decimal strings of any length.
function shortCount(digits) {
  if (digits.length <= 7) return digits.replace(/\B(?=(\d{3})+$)/g, ',');
  return digits[0] + '.' + digits.slice(1, 3) + ' × 10' + [...String(digits.length - 1)].map((d) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[d]).join('');
}
// A token as one sees it: spaces and line ends get a sign.
const visible = (piece) => piece.replace(/ /g, '␣').replace(/\r/g, '␍').replace(/\n/g, '⏎').replace(/\t/g, '⇥') || '∅';

const darkQuery = matchMedia('(prefers-color-scheme: dark)');
const redraws = [];
darkQuery.addEventListener('change', () => redraws.forEach((draw) => draw()));
const palettes = {
  light: { rise: [[240, 243, 246], [158, 199, 231], [31, 111, 181], [8, 48, 92]], split: [[173, 78, 10], [240, 183, 132], [243, 244, 246], [146, 190, 226], [24, 90, 157]] },
  dark: { rise: [[30, 36, 42], [27, 77, 122], [72, 152, 219], [205, 231, 252]], split: [[245, 158, 88], [138, 82, 38], [34, 40, 46], [34, 92, 142], [122, 190, 246]] },
};
function ramp(name, at) {
  const stops = palettes[darkQuery.matches ? 'dark' : 'light'][name];
  const x = Math.min(Math.max(Number.isFinite(at) ? at : 0, 0), 1) * (stops.length - 1), i = Math.min(Math.floor(x), stops.length - 2);
  return 'rgb(' + stops[i].map((v, j) => Math.round(v + (stops[i + 1][j] - v) * (x - i))).join(' ') + ')';
}
const gradient = (name) => 'linear-gradient(90deg,' + [0, .2, .4, .6, .8, 1].map((x) => ramp(name, x)).join(',') + ')';
// Lift 1 in the middle, a quarter and four times at the ends.
const liftPlace = (lift) => lift > 0 ? .5 + Math.log2(lift) / 4 : 0;
const hue = (expert) => (expert * 137.508 + 205) % 360;
const expertColour = (expert, strength) => `hsl(${hue(expert).toFixed(1)} 72% ${darkQuery.matches ? 55 : 52}% / ${strength.toFixed(3)})`;

const tip = byId('tip');
let shownAt = 0;  // scrolling to an item is heard after its tip was shown, and must not hide it
function showTip(content, box) {
  shownAt = performance.now();
  tip.replaceChildren(...content);
  tip.hidden = false;
  const size = tip.getBoundingClientRect(), gap = 10;
  let top = box.bottom + gap;
  if (top + size.height > innerHeight) top = Math.max(box.top - size.height - gap, 4);
  tip.style.top = top + 'px';
  tip.style.left = Math.min(Math.max(box.left + box.width / 2 - size.width / 2, 6), innerWidth - size.width - 6) + 'px';
}
const hideTip = () => { tip.hidden = true; };
addEventListener('scroll', () => { if (performance.now() - shownAt > 300) hideTip(); }, { passive: true, capture: true });
addEventListener('keydown', (e) => { if (e.key === 'Escape') hideTip(); });

// Items of a container that the pointer and the arrow keys can both visit. `columns`: how far up and down go; 0: not at all.
function explorable(container, items, columns, describe, choose) {
  let at = -1;
  const visit = (i) => {
    if (at >= 0) items[at].classList.remove('at');
    at = i;
    if (i < 0) return hideTip();
    items[i].classList.add('at');
    items[i].id ||= container.id + '-' + i;
    container.setAttribute('aria-activedescendant', items[i].id);
    items[i].scrollIntoView({ block: 'nearest', inline: 'nearest', behavior: 'instant' });
    showTip(describe(i), items[i].getBoundingClientRect());
  };
  const index = new Map(items.map((item, i) => [item, i]));
  container.tabIndex = 0;
  container.addEventListener('mouseover', (e) => { const i = index.get(e.target.closest('.cell,.tok')); if (i !== undefined) showTip(describe(i), items[i].getBoundingClientRect()); });
  container.addEventListener('mouseleave', hideTip);
  container.addEventListener('click', (e) => { const i = index.get(e.target.closest('.cell,.tok')); if (i !== undefined && choose) choose(i); });
  container.addEventListener('focus', () => { if (at < 0 && container.matches(':focus-visible') && items.length) visit(0); });
  container.addEventListener('blur', () => visit(-1));
  container.addEventListener('keydown', (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns || 1, ArrowUp: -(columns || 1) }[e.key];
    if (step) {
      const next = (at < 0 ? 0 : at + step);
      if (next >= 0 && next < items.length) visit(next);
      e.preventDefault();
    } else if ((e.key === 'Enter' || e.key === ' ') && at >= 0 && choose) {
      choose(at);
      e.preventDefault();
    }
  });
}

// A grid of rows × columns cells. value(r, c) → place on the ramp in [0, 1].
function heatMap(id, o) {
  const grid = el('div', { class: 'heat', id, role: 'grid', 'aria-label': o.label });
  grid.style.gridTemplateColumns = `max-content repeat(${o.columns.length}, minmax(var(--cell, 9px), 1fr))`;
  grid.style.maxWidth = 90 + o.columns.length * (o.cellMax || 34) + 'px';
  if (o.square) grid.classList.add('square');
  if (o.cell) grid.style.setProperty('--cell', o.cell + 'px');
  if (o.cellHeight) grid.style.setProperty('--cell-h', o.cellHeight + 'px');
  const every = o.names ? 1 : [1, 2, 4, 8, 16, 32].find((n) => o.columns.length / n <= (o.square ? 20 : 34)) || 64, cells = [];
  const names = () => [el('div', {}), ...o.columns.map((name, c) => el('div', { class: o.names ? 'colname slant' : 'colname', 'aria-hidden': 'true' }, c % every ? '' : String(name)))];
  if (o.names) grid.append(...names());
  const everyRow = o.square ? every : 1;
  o.rows.forEach((name, r) => {
    grid.append(el('div', { class: 'rowname', 'aria-hidden': 'true' }, r % everyRow ? '' : String(name)));
    o.columns.forEach((_, c) => { const cell = el('div', { class: 'cell', role: 'gridcell' }); cells.push(cell); grid.append(cell); });
  });
  if (!o.names) grid.append(...names());
  const width = o.columns.length;
  const draw = () => cells.forEach((cell, i) => { cell.style.background = ramp(o.ramp, o.value(Math.floor(i / width), i % width)); });
  draw();
  explorable(grid, cells, width, (i) => o.describe(Math.floor(i / width), i % width), o.choose && ((i) => o.choose(Math.floor(i / width), i % width)));
  return { grid: el('div', { class: 'scroll' }, grid), draw, cell: (r, c) => cells[r * width + c] };
}
function legend(name, from, to, middle) {
  const bar = el('i', {}), draw = () => { bar.style.background = gradient(name); };
  draw();
  redraws.push(draw);
  return el('div', { class: 'legend' }, from, bar, middle ? el('span', {}, to + '; ' + middle) : to);
}
function select(label, options, value, change) {
  const box = el('select', { onchange: () => change(box.value) }, options.map(([v, text]) => el('option', { value: v, selected: String(v) === String(value) }, text)));
  return el('label', {}, label, box);
}

// columns: {name, title?, text?: is text, value(row) to sort by, show(row)?}
function sortableTable(columns, rows, o = {}) {
  const body = el('tbody', {}), heads = [];
  let shown = [...rows];
  const draw = () => body.replaceChildren(...shown.slice(0, o.most || 4000).map((row) => {
    const line = el('tr', o.go ? { 'data-go': true, onclick: () => o.go(row) } : {}, columns.map((c) => el('td', { class: c.text ? 'text' : null }, c.show ? c.show(row) : String(c.value(row)))));
    return line;
  }));
  const sort = (i, direction) => {
    heads.forEach((h, j) => { if (i === j) h.setAttribute('aria-sort', direction > 0 ? 'ascending' : 'descending'); else h.removeAttribute('aria-sort'); });
    shown.sort((a, b) => { const x = columns[i].value(a), y = columns[i].value(b); return direction * (x < y ? -1 : x > y ? 1 : 0); });
    draw();
  };
  columns.forEach((c, i) => heads.push(el('th', { class: c.text ? 'text' : null, title: c.title, scope: 'col' },
    el('button', { type: 'button', onclick: () => sort(i, heads[i].getAttribute('aria-sort') === 'descending' ? 1 : c.text && !heads[i].hasAttribute('aria-sort') ? 1 : -1) }, c.name))));
  draw();
  const table = el('table', {}, el('thead', {}, el('tr', {}, heads)), body);
  return { table, filter: (keep) => { shown = rows.filter(keep); heads.forEach((h) => h.removeAttribute('aria-sort')); draw(); } };
}
function bars(rows, most) {
  return el('div', { class: 'bars' }, rows.flatMap(([name, value, text]) => [
    el('span', { class: 'name' }, name), el('span', { class: 'track' }, el('i', { style: { width: Math.min(100 * value / most, 100) + '%' } })), el('span', { class: 'num' }, text)]));
}
const tiles = (list) => el('ul', { class: 'tiles' }, list.filter(Boolean).map(([value, text]) => el('li', {}, el('b', {}, value), el('span', {}, text))));
function section(id, title, note, ...content) {
  const s = el('section', { id, 'aria-label': title }, el('div', { class: 'head' }, el('h2', {}, title)), note ? el('p', { class: 'soft' }, note) : null, content);
  byId('main').append(s);
  return s;
}
